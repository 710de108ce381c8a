"""OpenAI's Responses: items in, items out. Nothing is stored, so each request has to bring the whole conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspec.errors import ContextOverflow, InputError
from pyspec.requests.bodies import Body, check_names
from pyspec.requests.records import Record, openai_reason
from pyspec.serve.interface import (
    AnswerBlock,
    AnswerBlocks,
    Choice,
    Interface,
    PendingRequest,
    event,
    openai_refusal,
)
from pyspec.text.messages import SYSTEM_ROLES, content_text
from pyspec.text.parts import AnswerPart, Result, object_of

# -- items in ----------------------------------------------------------------------------------------------------------


def messages_of(
    items: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """A chat's messages. The model's items between two turns become one message. Raises InputError."""
    system = [instructions] if instructions else []
    if isinstance(items, str):
        made = [{"role": "user", "content": items}]
    else:
        if not items:
            raise InputError("input is empty")
        made = _turns(items)
        while made and made[0]["role"] in SYSTEM_ROLES:  # templates take one such message
            system.append(made.pop(0)["content"])
    return [{"role": "system", "content": "\n\n".join(system)}, *made] if system else made


def _turns(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") in SERVERS:
            continue
        part = _own_part(item)
        if part is None:
            turns.append(_turn(item))
            continue
        own = turns[-1] if turns else {}
        # a turn has one content and one reasoning, and no content after calls
        twice = own.keys() & part.keys() - {"tool_calls"}
        late = "content" in part and "tool_calls" in own
        if twice or late or own.get("role") != "assistant":
            own = {"role": "assistant"}
            turns.append(own)
        calls = [*own.get("tool_calls", ()), *part.get("tool_calls", ())]
        own |= part
        if calls:
            own["tool_calls"] = calls
    return turns


def _own_part(item: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a turn that one of the model's items is; None for other items."""
    kind = item.get("type", "message")
    if kind in CALLS:
        return {"tool_calls": [call_of(item)]}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"reasoning_content": content_text(parts) or ""}
    if kind == "message" and item.get("role") == "assistant":
        return {"content": content_text(item["content"]) or ""}
    return None


def _turn(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item["role"], "content": content_text(item["content"]) or ""}
    if kind in OUTPUTS:
        return result_message(item)
    if kind == "item_reference":
        hint = "send the items themselves, as clients do where store is false"
        raise InputError("item_reference needs stored responses, and none are stored", hint)
    hint = "use messages, calls of tools that you run, their outputs, and reasoning"
    raise InputError(f"an item of the type {str(kind)[:40]!r} cannot be read", hint)


# -- tools of clients --------------------------------------------------------------------------------------------------

_SEARCH = "tool_search"  # a search for tools, which agents have no name for
KINDS = ("function", "custom", "namespace", _SEARCH)  # of tools that clients run

_UNKNOWN = ("local_shell", "shell", "apply_patch", "computer", "computer_use_preview")
# types of tools that clients run and whose schemas only OpenAI's models know

CALLS = ("function_call", "custom_tool_call", "tool_search_call")  # types of items that call them
OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")  # of calls

SERVERS = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_list_tools",
    "additional_tools",
)  # fmt: skip
"""Types of items that are skipped: OpenAI's server ran these tools, and the model's text has their results."""

_TEXT_ALONE = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of it."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool: it takes a text, and to the model it is a function of one string."""


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs. definition: as in the request. namespace: the name of the namespace that holds it."""

    definition: Mapping[str, Any]
    namespace: str | None = None

    @property
    def kind(self) -> str:
        return str(self.definition.get("type", "function"))

    @property
    def name(self) -> str:
        """Its name for the model."""
        own = self.kind if self.kind == _SEARCH else self.definition.get("name")
        return flat_name(own, self.namespace)

    def function(self) -> dict[str, Any]:
        """The function that stands for it. The grammar of a custom tool goes into the description, and is not enforced."""
        if self.kind == _SEARCH:
            about = {"description": "Finds tools.", "parameters": {"type": "object"}}
            own = {key: self.definition[key] for key in about if self.definition.get(key)}
            return {"name": self.name, **about, **own}
        if self.kind == "function":
            fields = {key: value for key, value in self.definition.items() if key != "type"}
            return {**fields, "name": self.name}
        form = self.definition.get("format") or {}
        texts = [self.definition.get("description")]
        if "definition" in form:
            texts.append(f"The input's form, in {form.get('syntax')}:\n{form['definition']}")
        description = "\n\n".join(filter(None, texts))
        return {"name": self.name, "description": description, "parameters": _TEXT_ALONE}

    def item(self, call: str, text: str) -> dict[str, Any]:
        """A call of the tool as an item. call: its id. text: its arguments so far."""
        if self.kind == _SEARCH:
            told = {"execution": "client", "arguments": object_of(text or "{}") or {}}
            return {"type": "tool_search_call", "call_id": call, **told}
        where = {} if self.namespace is None else {"namespace": self.namespace}
        named = {"call_id": call, "name": self.definition.get("name"), **where}
        if self.kind == "custom":
            return {"type": "custom_tool_call", **named, "input": _text_of_call(text)}
        return {"type": "function_call", **named, "arguments": text}


def _text_of_call(arguments: str) -> str:
    """The text in a custom call's arguments, or the arguments themselves if they were cut or have none."""
    text = (object_of(arguments) or {}).get("input")
    if text is None:
        return arguments
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def flat_name(name: Any, namespace: Any = None) -> str:
    """A tool's name prefixed with its namespace, as MCP writes it. Raises InputError for a name that is not a text."""
    if not isinstance(name, str):
        raise InputError("a tool has no name")
    return f"{str(namespace).removesuffix('__')}__{name}" if namespace else name


def client_tools(tools: Iterable[dict[str, Any]]) -> Iterator[ClientTool]:
    """Client-run tools in a request's `tools`. Raises InputError."""
    for tool in tools:
        if tool.get("type") == "namespace":
            name = flat_name(tool.get("name"))
            yield from (ClientTool(each, name) for each in tool["tools"])
        elif _is_remote(tool):
            continue
        elif tool.get("type") in _UNKNOWN:
            hint = "send a function or a custom tool"
            raise InputError(f"tools of the type {tool['type']!r} are not known here", hint)
        elif tool.get("type") in KINDS:
            yield ClientTool(tool)


def found_tools(items: Any) -> Iterator[dict[str, Any]]:
    """Tools in a conversation's items: results of a tool search, or additional ones."""
    for item in items if isinstance(items, list) else ():
        if item.get("type") in ("tool_search_output", "additional_tools"):
            yield from item["tools"]


def _is_remote(tool: Mapping[str, Any]) -> bool:
    """Whether OpenAI's server would run it: a shell in a container, or its own tool search."""
    where = tool.get("environment")
    elsewhere = isinstance(where, dict) and where.get("type") != "local"
    return elsewhere or (tool.get("type") == _SEARCH and tool.get("execution") != "client")


def flat_choice(choice: Any, tools: Iterable[ClientTool]) -> Any:
    """A `tool_choice` with tools' names for the model."""
    names = {tool.definition.get("name", tool.kind): tool.name for tool in tools}

    def flat(named: Any) -> Any:
        name = names.get(named.get("name", named.get("type"))) if isinstance(named, dict) else None
        return {"type": "function", "name": name} if name else named

    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**choice, "tools": [flat(each) for each in choice.get("tools") or ()]}
    return flat(choice)


def call_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item's call in a chat's format. Raises InputError."""
    kind = item["type"].removesuffix("_call")
    given: Any  # a text, or an object
    if kind == _SEARCH:
        name, given = kind, {k: each for k, each in item["arguments"].items() if each is not None}
    else:
        name = flat_name(item["name"], item.get("namespace"))
        given = {"input": item["input"]} if kind == "custom_tool" else item["arguments"]
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    function = {"name": name, "arguments": arguments}
    return {"id": _id(item), "type": "function", "function": function}


def result_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call's output as a message of a chat. Raises InputError."""
    if item["type"] == "tool_search_output":
        names = [tool.name for tool in client_tools(item["tools"])]
        text = f"Tools that can be called now: {', '.join(names) or 'none'}."
    else:
        text = content_text(item["output"], result=True) or ""
    return {"role": "tool", "tool_call_id": _id(item), "content": text}


def _id(item: Mapping[str, Any]) -> Any:
    """The id of an item's call. For searches, some clients send the item's id instead."""
    return item.get("call_id") or item["id"]


class ResponsesBody(Body):
    """A request's body. Features that need stored responses are refused. Tools that OpenAI's server would run are left out."""

    most_answers = 1

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.max_output_tokens is not None:
            self.max_tokens = self.max_output_tokens
        self.response_format = self.response_format or (self.text or {}).get("format")

    def client_tools(self) -> dict[str, ClientTool]:
        """Client-run tools by their names for the model. Searches may find the same tool several times."""
        tools = list(client_tools(self.tools or ()))
        check_names(tool.name for tool in tools)
        return {tool.name: tool for tool in (*tools, *client_tools(found_tools(self.input)))}

    def records(self) -> list[Record]:
        tools = list(self.client_tools().values())
        record = self._chat(
            messages_of(self.input, self.instructions),
            tools=[{"type": "function", "function": tool.function()} for tool in tools],
            choice=flat_choice(self.tool_choice, tools),
            parallel=self.parallel_tool_calls,
        )
        return [record]


# -- items out ---------------------------------------------------------------------------------------------------------

_NAMES = {"reasoning": "rs", "content": "msg", "call": "fc"}
_PARTS = {"reasoning": "reasoning_text", "content": "output_text"}
_BESIDE: dict[str, Any] = {"content": {"logprobs": []}}  # what is sent beside a block's text


class ResponseWriter:
    """The response to one request as it grows."""

    def __init__(self, pending: PendingRequest) -> None:
        self._pending, self._body = pending, pending.body
        self._blocks, self._tools = AnswerBlocks(), pending.body.client_tools()
        self._count = 0

    # -- as a whole --------------------------------------------------------------------------------

    def response(self, status: str, choice: Choice | None = None) -> dict[str, Any]:
        """The response's body. choice: the finished answer."""
        pending, body = self._pending, self._body
        made = {
            "id": pending.name,
            "object": "response",
            "created_at": pending.created,
            "model": pending.serving.model,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
            "store": False,
            "user": body.user,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": body.text or {"format": {"type": "text"}},
            "tools": [tool for tool in body.tools or () if tool.get("type") in KINDS],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "truncation": "disabled",
        }
        return made if choice is None else {**made, **self._ended(choice)}

    def _ended(self, choice: Choice) -> dict[str, Any]:
        result: Result = choice.result
        cut = openai_reason(result.finish_reason) == "length"
        used, kept = result.usage, result.speculation.get("prompt_kept", 0)
        usage = {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": kept, "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": result.reasoned},
            "total_tokens": used.total_tokens,
        }
        return {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(block) for block in self._blocks.all],
            "usage": usage,
            "speculation": choice.block,
        }

    def _tool(self, block: AnswerBlock) -> ClientTool:
        return self._tools.get(block.name) or ClientTool({"name": block.name})

    def _id(self, block: AnswerBlock) -> str:
        custom = block.kind == "call" and self._tool(block).kind == "custom"
        name = "ctc" if custom else _NAMES[block.kind]
        return f"{name}_{self._pending.name.partition('_')[2]}_{block.index}"

    def _item(self, block: AnswerBlock, status: str = "") -> dict[str, Any]:
        """A block as an item. status: of a block that has not ended."""
        status = status or ("completed" if block.whole else "incomplete")
        made: dict[str, Any] = {"id": self._id(block), "status": status}
        if block.kind == "call":
            return {**made, **self._tool(block).item(block.call, block.text)}
        content = [] if status == "in_progress" else [self._part(block)]
        if block.kind == "reasoning":
            return {**made, "type": "reasoning", "summary": [], "content": content}
        return {**made, "type": "message", "role": "assistant", "content": content}

    def _part(self, block: AnswerBlock) -> dict[str, Any]:
        part = {"type": _PARTS[block.kind], "text": block.text, **_BESIDE.get(block.kind, {})}
        return part if block.kind == "reasoning" else {**part, "annotations": []}

    # -- as events ---------------------------------------------------------------------------------

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A new event with the next sequence number."""
        made = {"type": kind, "sequence_number": self._count, **fields}
        self._count += 1
        return made

    def going_on(self, kind: str) -> dict[str, Any]:
        """An event of a response that has begun, or goes on."""
        return self.event(f"response.{kind}", response=self.response("in_progress"))

    def take(self, choice: Choice) -> Iterator[dict[str, Any]]:
        """Take what arrived as events, including those of the end."""
        parts, ended = choice.taken()
        if ended and not parts and not self._blocks.all:
            parts = [AnswerPart("content", "")]  # clients expect an item
        for step, block, text in self._blocks.take(parts):
            if step == "more":
                yield from self._more(block, text)
            else:
                yield from self._begin(block) if step == "begin" else self._end(block)
        if ended:
            for _, block, _ in self._blocks.end():
                yield from self._end(block)

    def _begin(self, block: AnswerBlock) -> Iterator[dict[str, Any]]:
        item = self._item(block, "in_progress")
        yield self.event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            part = self._part(block)
            yield self.event("response.content_part.added", **self._place(block), part=part)

    def _more(self, block: AnswerBlock, text: str) -> Iterator[dict[str, Any]]:
        said = {**self._place(block), "delta": text}
        if block.kind != "call":
            kind = f"response.{_PARTS[block.kind]}.delta"
            yield self.event(kind, **said, **_BESIDE.get(block.kind, {}))
        elif self._tool(block).kind == "function":  # others are sent once their JSON is whole
            yield self.event("response.function_call_arguments.delta", **said)

    def _end(self, block: AnswerBlock) -> Iterator[dict[str, Any]]:
        place, item = self._place(block), self._item(block)
        if item["type"] == "custom_tool_call":
            kind = "response.custom_tool_call_input"
            yield self.event(f"{kind}.delta", **place, delta=item["input"])
            yield self.event(f"{kind}.done", **place, input=item["input"])
        elif item["type"] == "function_call":
            named = {"name": item["name"], "arguments": block.text}
            yield self.event("response.function_call_arguments.done", **place, **named)
        elif block.kind != "call":
            part, done = self._part(block), {"text": block.text, **_BESIDE.get(block.kind, {})}
            yield self.event(f"response.{part['type']}.done", **place, **done)
            yield self.event("response.content_part.done", **place, part=part)
        yield self.event("response.output_item.done", output_index=block.index, item=item)

    def _place(self, block: AnswerBlock) -> dict[str, Any]:
        place = {"item_id": self._id(block), "output_index": block.index}
        return place if block.kind == "call" else {**place, "content_index": 0}


def whole(pending: PendingRequest) -> dict[str, Any]:
    answer, (choice,) = ResponseWriter(pending), pending.choices
    for _ in answer.take(choice):
        pass
    return answer.response("completed", choice)


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """A response's events, from `response.created` to the one with its final status.

    The first ones are sent with the first text, since until then another replica could still answer, or at the first ping:
    some clients take only events, not comments, as a sign of life.
    """
    answer = ResponseWriter(pending)
    begun = False
    async for choice in pending.updates():
        if not begun:
            begun = True
            yield event(answer.going_on("created"))
            yield event(answer.going_on("in_progress"))
        elif choice is None:
            yield event(answer.going_on("in_progress"))
        for each in answer.take(choice) if choice is not None else ():
            yield event(each)
    response = answer.response("completed", pending.choices[0])
    yield event(answer.event(f"response.{response['status']}", response=response))


def broken(refused: dict[str, Any]) -> bytes:
    """The last events of a stream that fails. Some clients look for the one, some for the other."""
    told = refused["error"]
    ours = told["type"] == "server_error"
    code = "server_error" if ours else told["code"] or "invalid_prompt"
    reason = {"code": code, "message": told["message"]}
    error = {**refused, **reason, "param": None}
    failed = {"id": "", "object": "response", "status": "failed", "error": reason, "output": []}
    last = {"type": "response.failed", "sequence_number": 1, "response": failed}
    return event({"type": "error", "sequence_number": 0, **error}) + event(last)


RESPONSES = Interface(
    "response", "resp_", ResponsesBody, whole, events, openai_refusal, broken,
    streamed=(ContextOverflow,),
)  # fmt: skip
