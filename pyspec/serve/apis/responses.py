"""OpenAI's Responses: items in, items out. Nothing is stored, so each request has to bring the whole conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pyspec.errors import AnswerFailed, ContextOverflow
from pyspec.requests.bodies import Body, check_names
from pyspec.requests.fields import REFUSED
from pyspec.requests.records import Record
from pyspec.serve.apis.interface import Interface, event, openai_refusal
from pyspec.serve.apis.items import (
    KINDS,
    ClientTool,
    client_tools,
    flat_choice,
    found_tools,
    messages_of,
)
from pyspec.serve.pending import AnswerBlock, AnswerBlocks, Choice, PendingRequest
from pyspec.text.parts import AnswerPart, Result


class ResponsesBody(Body):
    """A request's body. Features that need stored responses are refused. Tools that OpenAI's server would run are left out."""

    refused = (
        *REFUSED, "background", "conversation", "include", "personality", "previous_response_id", "prompt",
        "top_logprobs", "truncation",
    )  # fmt: skip

    most_answers = 1

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None
    personality: Any = None
    metadata: dict[str, Any] | None = None
    truncation: Any = None

    def __post_init__(self) -> None:
        if self.max_output_tokens is not None:
            self.max_tokens = self.max_output_tokens
        self.response_format = self.response_format or (self.text or {}).get("format")

    def client_tools(self) -> dict[str, ClientTool]:
        """Client-run tools by their names for the model. Searches may find the same tool several times."""
        tools = list(client_tools(self.tools or ()))
        check_names(tool.name for tool in tools)
        return {tool.name: tool for tool in (*tools, *client_tools(found_tools(self.input)))}

    def records(self, name: str) -> list[Record]:
        """The chat as one record. Raises InputError."""
        tools = list(self.client_tools().values())
        record = self._chat(
            name,
            messages_of(self.input, self.instructions),
            tools=[{"type": "function", "function": tool.function()} for tool in tools],
            choice=flat_choice(self.tool_choice, tools),
            parallel=self.parallel_tool_calls,
        )
        return [record]


# -- items out ---------------------------------------------------------------------------------------------------------

_NAMES = {"reasoning": "rs", "content": "msg", "call": "fc"}
_PARTS = {"reasoning": "reasoning_text", "content": "output_text"}


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
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": pending.serving.model,
            "output": [],
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
            "store": False,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool for tool in body.tools or () if tool.get("type") in KINDS],
            "top_p": body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }
        return made if choice is None else {**made, **self._ended(choice)}

    def _ended(self, choice: Choice) -> dict[str, Any]:
        result: Result = choice.result
        cut = result.finish_reason in ("length", "context", "cancelled")
        used = result.usage
        return {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(block) for block in self._blocks.all],
            "usage": {
                "input_tokens": used.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": result.speculation.get("prompt_kept", 0),
                    "cache_write_tokens": 0,
                },
                "output_tokens": used.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": result.reasoned},
                "total_tokens": used.total_tokens,
            },
            "speculation": choice.block,
        }

    def _tool(self, block: AnswerBlock) -> ClientTool:
        """The tool that a block calls."""
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
        part = {"type": _PARTS[block.kind], "text": block.text}
        if block.kind == "reasoning":
            return part
        return {**part, "annotations": [], "logprobs": []}

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
        parts = choice.taken()
        if choice.result is not None and not parts and not self._blocks.all:
            parts = [AnswerPart("content", "")]  # clients expect an item
        for step, block, text in self._blocks.take(parts):
            if step == "more":
                yield from self._more(block, text)
            else:
                yield from self._begin(block) if step == "begin" else self._end(block)
        if choice.result is not None:
            for _, block, _ in self._blocks.end():
                yield from self._end(block)

    def _begin(self, block: AnswerBlock) -> Iterator[dict[str, Any]]:
        item = self._item(block, "in_progress")
        yield self.event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            part = self._part(block)
            yield self.event("response.content_part.added", **self._place(block), part=part)

    def _more(self, block: AnswerBlock, text: str) -> Iterator[dict[str, Any]]:
        place = self._place(block)
        if block.kind == "call":
            if (
                self._tool(block).kind == "function"
            ):  # other calls are sent once their JSON is whole
                yield self.event("response.function_call_arguments.delta", **place, delta=text)
        elif block.kind == "reasoning":
            yield self.event("response.reasoning_text.delta", **place, delta=text)
        else:
            yield self.event("response.output_text.delta", **place, delta=text, logprobs=[])

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
            part = self._part(block)
            done = {**place, "text": block.text}
            if block.kind == "content":
                done["logprobs"] = []
            yield self.event(f"response.{part['type']}.done", **done)
            yield self.event("response.content_part.done", **place, part=part)
        yield self.event("response.output_item.done", output_index=block.index, item=item)

    def _place(self, block: AnswerBlock) -> dict[str, Any]:
        place = {"item_id": self._id(block), "output_index": block.index}
        return place if block.kind == "call" else {**place, "content_index": 0}


def whole(pending: PendingRequest, choices: list[Choice]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    answer = ResponseWriter(pending)
    for _ in answer.take(choices[0]):
        pass
    return answer.response("completed", choices[0])


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """A response's events, from `response.created` to the one with its final status.

    The first ones are sent with the first text, since until then another replica could still answer, or at the first ping:
    some clients take only events, not comments, as a sign of life.
    """
    answer, choices = ResponseWriter(pending), pending.choices()
    begun = False
    try:
        async for choice in pending.updates(choices):
            if not begun:
                begun = True
                yield event(answer.going_on("created"))
                yield event(answer.going_on("in_progress"))
            elif choice is None:
                yield event(answer.going_on("in_progress"))
            if choice is None:
                continue
            for each in answer.take(choice):
                yield event(each)
    except AnswerFailed as error:
        if not begun:  # clients expect it before any other event
            yield event(answer.going_on("created"))
        failed = {
            **answer.response("failed"),
            "error": {"code": "server_error", "message": str(error)},
        }
        yield event(answer.event("response.failed", response=failed))
        return
    response = answer.response("completed", choices[0])
    yield event(answer.event(f"response.{response['status']}", response=response))


def broken(status: int, code: str | None, message: str) -> bytes:
    """The last events of a stream that fails. Some clients look for the one, some for the other."""
    reason = {
        "code": code or ("server_error" if status >= 500 else "invalid_prompt"),
        "message": message,
    }
    error = {**openai_refusal(status, code, message), **reason, "param": None}
    failed = {"id": "", "object": "response", "status": "failed", "error": reason, "output": []}
    return event({"type": "error", "sequence_number": 0, **error}) + event(
        {"type": "response.failed", "sequence_number": 1, "response": failed}
    )


RESPONSES = Interface(
    "response", "resp_", ResponsesBody, whole, events, openai_refusal, broken,
    streamed=(ContextOverflow,),
)  # fmt: skip
