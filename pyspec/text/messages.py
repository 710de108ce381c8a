"""The messages of a conversation: as clients send them, in the standard form of `transformers`, and as a template takes them.

Templates disagree where OpenAI's format leaves a choice: whether a call's arguments are an object or a string, whether missing
content is null or empty, whether content is text or a list of parts, whether there is a system turn at all. Each of `FORMS`
changes one thing, for templates that would otherwise refuse or lose it.

Which forms a template needs is decided on a probe: a conversation of the same structure with a different word in each place. The
template has left out what belongs to a word that the probe's rendering lacks. So the forms depend on the conversation's structure
and on none of its words.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, takewhile
from typing import Any, TypedDict

from pyspec.errors import InputError
from pyspec.text.parts import object_of


class Message(TypedDict, total=False):
    """One turn of a conversation, in OpenAI's form.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        content: The text of the turn, or its parts.
        reasoning_content: The model's reasoning before the content.
        tokens: Ids of an answer as it was generated, in place of its content. Never pass ids from an untrusted source.
    """

    role: str
    content: str | list[dict[str, Any]]
    reasoning_content: str
    tokens: Sequence[int]


_REASONING = ("reasoning_content", "thinking", "reasoning")


def standard(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with text content, call arguments as objects, and reasoning under the names that templates read.

    Arguments cut off by an answer's token limit stay text. Raises InputError for a message without a role, content that is
    not text, or a call without a function.
    """
    return [_standard(message) for message in messages]


def _standard(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError("a message has no role")
    made = {key: value for key, value in message.items() if key != "tokens"}
    made["content"] = content_text(message.get("content"), result=message["role"] in RESULTS)
    if made["content"] is None and message["role"] != "assistant":
        raise InputError(f"a message of the role {message['role'][:40]} has no content")
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if reasoning is not None:
        made = {"thinking": reasoning, **made, "reasoning_content": reasoning}
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise InputError("the tool calls of a message are not a list")
    made.pop("tool_calls", None)  # templates test whether the key exists
    return {**made, "tool_calls": list(map(_call, calls))} if calls else made


NO_PICTURE = "(a picture, which this model cannot see)"
"""Stands for one in a call's result: the conversation goes on when it is sent again."""

RESULTS = ("tool", "function")


def content_text(content: Any, *, result: bool = False) -> str | None:
    """Return the text of a message's content: one string, or parts of text. Raises InputError for other kinds.

    result: whether it is a call's result, of which a line says that there was a picture.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    parts = without_pictures(parts) if result else parts
    if any(map(is_picture, parts)):
        raise picture_refused()
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise InputError("a message has content that is not text", "files and audio are not read")
    return "".join(part["text"] for part in parts)


def picture_refused() -> InputError:
    """Return the error for a picture that somebody is to see."""
    return InputError(
        "a message has a picture, and only pyspec.SpeculativeLlama sees pictures, by a chat_handler of llama-cpp-python's"
    )


def without_pictures(content: list[Any]) -> list[Any]:
    """Return a call's result with a line of text in place of each picture."""
    return [{"type": "text", "text": NO_PICTURE} if is_picture(part) else part for part in content]


def is_picture(part: Any) -> bool:
    """Whether a part of a content is a picture, in any API's form."""
    return isinstance(part, dict) and part.get("type") in ("image", "image_url", "input_image")


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError("a tool call in the messages has no function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        read = object_of(arguments or "{}")
        arguments = arguments if read is None else read
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def from_outside(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return untrusted messages without their `tokens`, which could include any control token. Raises InputError."""
    if not all(isinstance(message, Mapping) for message in messages):
        raise InputError("a message is no object with a role")
    return [
        {key: value for key, value in message.items() if key != "tokens"} for message in messages
    ]


# -- forms -------------------------------------------------------------------------------------------------------------

TemplateInput = dict[str, Any]
"""A template's variables: messages, tools, add_generation_prompt and others that it reads."""


def _with_messages(
    inputs: TemplateInput, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> TemplateInput:
    return {**inputs, "messages": [change(message) for message in inputs["messages"]]}


def _with_arguments(inputs: TemplateInput, change: Callable[[Any], Any]) -> TemplateInput:
    """Apply `change` to the arguments of each call."""

    def changed(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": change(function["arguments"])}}

    def each(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        return {**message, "tool_calls": list(map(changed, calls))} if calls else message

    return _with_messages(inputs, each)


_ROLES = {"developer": "system", "function": "tool"}
SYSTEM_ROLES = ("system", "developer")  # roles that tell the model what to do


def _content_in_reasoning(inputs: TemplateInput) -> TemplateInput:
    """Move content beside calls to the end of the reasoning, for templates that accept only one of the two."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        thoughts, content = message.get("reasoning_content"), message["content"]
        if not (message.get("tool_calls") and content and isinstance(thoughts, str)):
            return message
        both = f"{thoughts}\n\n{content}"
        return {**message, "content": "", "thinking": both, "reasoning_content": both}

    return _with_messages(inputs, change)


def _content_before_calls(inputs: TemplateInput) -> TemplateInput:
    """Give content beside calls a turn of its own before them, for templates that leave it out."""
    made: list[dict[str, Any]] = []
    for message in inputs["messages"]:
        if message.get("tool_calls") and message["content"]:
            made.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {"role": message["role"], "content": "", "tool_calls": message["tool_calls"]}  # noqa: PLW2901
        made.append(message)
    return {**inputs, "messages": made}


def _content_to_next(inputs: TemplateInput) -> TemplateInput:
    """Put words beside calls into the model's next turn, for templates that take one text of it between two users."""
    made, told = list[dict[str, Any]](), -1  # the place of the last words beside calls
    for message in inputs["messages"]:
        turn = dict(message)
        if turn["role"] == "assistant":
            if told >= 0:
                turn["content"] = "\n\n".join(
                    filter(None, [made[told]["content"], turn["content"]])
                )
                made[told]["content"] = ""
            told = len(made) if turn.get("tool_calls") and turn["content"] else -1
        elif turn["role"] not in RESULTS:
            told = -1
        made.append(turn)
    return {**inputs, "messages": made}


def _calls_apart(inputs: TemplateInput) -> TemplateInput:
    """Give each call a turn of its own and put its result behind it, for templates that write one call a turn."""
    made, left = list[dict[str, Any]](), list(inputs["messages"])
    while left:
        message = left.pop(0)
        calls = message.get("tool_calls") or ()
        made += [] if calls else [message]
        for call in calls:
            made.append({**message, "tool_calls": [call]})
            message = {"role": message["role"], "content": ""}
            results = takewhile(lambda turn: turn["role"] in RESULTS, left)
            ids = [turn.get("tool_call_id") for turn in results]
            if call.get("id") in ids:
                made.append(left.pop(ids.index(call.get("id"))))
    return {**inputs, "messages": made}


def _short_ids(inputs: TemplateInput) -> TemplateInput:
    """Give calls and their results ids of nine letters and digits. A result without a call's id is the next call's."""
    made, waiting, number = list[dict[str, Any]](), list[tuple[Any, str]](), count()
    for message in inputs["messages"]:
        turn, calls = dict(message), message.get("tool_calls") or ()
        ids = [(call.get("id"), f"call{next(number):05}") for call in calls]
        if ids:
            turn["tool_calls"] = [{**call, "id": new} for call, (_, new) in zip(calls, ids)]
        elif turn["role"] in RESULTS and waiting:
            named = (each for each in waiting if each[0] == turn.get("tool_call_id"))
            waiting.remove(own := next(named, waiting[0]))
            turn["tool_call_id"] = own[1]
        waiting += ids
        made.append(turn)
    return {**inputs, "messages": made}


def _whole_tools(inputs: TemplateInput) -> TemplateInput:
    """Give functions that lack a description or parameters empty ones, for templates that read them unasked."""
    tools = []
    for tool in inputs.get("tools") or ():
        function = tool.get("function") or {}
        parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
        told = {"description": function.get("description") or "", "parameters": parameters}
        tools.append({**tool, "function": {**function, **told}})
    return {**inputs, "tools": tools or None}


def _system_in_user(inputs: TemplateInput) -> TemplateInput:
    """Put the system prompt in front of the first user message."""
    first, *rest = inputs["messages"] or [{}]
    if first.get("role") not in SYSTEM_ROLES or not isinstance(first["content"], str):
        return inputs
    if not rest or rest[0]["role"] != "user" or not isinstance(rest[0]["content"], str):
        return {**inputs, "messages": [{"role": "user", "content": first["content"]}, *rest]}
    joined = {**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}
    return {**inputs, "messages": [joined, *rest[1:]]}


def _tools_in_words(inputs: TemplateInput) -> TemplateInput:
    """Describe tools in the system prompt and write calls and results as text, as Hermes and Qwen models were trained on."""
    messages = [_call_in_words(message) for message in inputs["messages"]]
    if inputs.get("tools"):
        text = tools_text([tool.get("function", tool) for tool in inputs["tools"]])
        if messages and messages[0]["role"] in SYSTEM_ROLES:
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
            messages = [first, *messages[1:]]
        else:
            messages = [{"role": "system", "content": text}, *messages]
    return {**inputs, "tools": None, "messages": messages}


def _call_in_words(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] in RESULTS:
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
        }
    calls = message.get("tool_calls")
    if not calls:
        return message
    made = {key: value for key, value in message.items() if key != "tool_calls"}
    asked = [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]
    texts = [f"<tool_call>\n{json.dumps(a, ensure_ascii=False)}\n</tool_call>" for a in asked]
    return {**made, "content": "\n".join(filter(None, [message["content"], *texts]))}


def tools_text(functions: Sequence[Mapping[str, Any]]) -> str:
    """Return the description of tools for a model whose template does not support them."""
    lines = "\n".join(
        json.dumps({"type": "function", "function": function}, ensure_ascii=False)
        for function in functions
    )
    return (
        f"These functions can be called, one a line:\n<tools>\n{lines}\n</tools>\n"
        "If one of them helps, call it by writing its name and arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )


def _late_system(inputs: TemplateInput) -> TemplateInput:
    """Turn later system messages into user messages in place: moving them to the front would change the cached prefix."""
    messages = inputs["messages"]
    others = (i for i, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES)
    first = next(others, len(messages))
    late = [{**m, "role": "user"} if m["role"] in SYSTEM_ROLES else m for m in messages[first:]]
    return {**inputs, "messages": [*messages[:first], *late]}


def _joined(
    inputs: TemplateInput, belong: Callable[[dict[str, Any], dict[str, Any]], bool]
) -> TemplateInput:
    """Join each turn that belongs to the one before it, with a blank line between."""
    made: list[dict[str, Any]] = []
    for message in inputs["messages"]:
        before = made[-1] if made else None
        # no text can follow the calls of a turn
        if before is None or before.get("tool_calls") or not belong(before, message):
            made.append(message)
            continue
        texts = (before["content"], message["content"])
        if all(text is None or isinstance(text, str) for text in texts):
            made[-1] = {**message, **before, "content": "\n\n".join(filter(None, texts))}
        else:
            made.append(message)
    return {**inputs, "messages": made}


def _content_parts(message: dict[str, Any]) -> dict[str, Any]:
    text = message["content"]
    parts = [{"type": "text", "text": text}] if isinstance(text, str) else text
    return {**message, "content": parts}


FORMS: Mapping[str, Callable[[TemplateInput], TemplateInput]] = {
    # missing content is empty text
    "empty content": partial(_with_messages, change=lambda m: {**m, "content": m["content"] or ""}),
    # arguments of calls are JSON text, or an object where they are none
    "text arguments": partial(
        _with_arguments,
        change=lambda a: a if isinstance(a, str) else json.dumps(a, ensure_ascii=False),
    ),
    "object arguments": partial(
        _with_arguments, change=lambda a: a if isinstance(a, dict) else {"arguments": a}
    ),
    # roles have their older names
    "old roles": partial(
        _with_messages, change=lambda m: {**m, "role": _ROLES.get(m["role"], m["role"])}
    ),
    "content in reasoning": _content_in_reasoning,
    "content before calls": _content_before_calls,
    "content to next": _content_to_next,
    "calls apart": _calls_apart,
    # as Mistral's templates demand them
    "short ids": _short_ids,
    "content parts": partial(_with_messages, change=_content_parts),
    # for templates that expect tools
    "whole tools": _whole_tools,
    "empty tools": lambda inputs: inputs if inputs.get("tools") else {**inputs, "tools": []},
    "system in user": _system_in_user,
    "tools in words": _tools_in_words,
    "late system": _late_system,
    # neighbouring turns of one role are one turn; a user's text is appended to the tool's result before it
    "merged turns": partial(_joined, belong=lambda a, b: a["role"] == b["role"] != "tool"),
    "in result": partial(_joined, belong=lambda a, b: (a["role"], b["role"]) == ("tool", "user")),
}
"""Changes of a conversation, by name."""

_TURNS: Sequence[tuple[str, ...]] = (
    (),
    ("old roles",),
    ("old roles", "late system"),
    ("old roles", "merged turns"),
    ("old roles", "late system", "merged turns"),
    ("old roles", "late system", "merged turns", "in result"),
)
"""Forms that change whole turns, for templates that accept turns only in a certain order."""

_WORDS = "tools in words"  # the last resort: calls are read as the family writes them

_NOTATIONS: Sequence[tuple[str, ...]] = (
    (),
    *((name,) for name in FORMS if not any(name in turns for turns in (*_TURNS, [_WORDS]))),
    ("content before calls", "calls apart"),
    ("content to next", "content before calls"),
    ("content to next", "content before calls", "short ids"),
    (_WORDS,),
    (_WORDS, "system in user"),
    (_WORDS, "empty tools"),
)

CHOICES = tuple((*notation, *turns) for notation in _NOTATIONS for turns in _TURNS)
"""Combinations of forms in the order in which they are tried."""

WARNINGS = {
    "system in user": "this model's chat template has no system role: the system prompt goes before the first user message",
    "tools in words": "this model's chat template does not support tools: they are described in the system prompt",
    "late system": "this model's chat template accepts a system message only at the beginning: later ones become user messages",
    "merged turns": "this model's chat template requires alternating roles: consecutive messages of one role are merged",
    "in result": "this model's chat template accepts no user message after a tool's result: its text is appended to the result",
}
"""Warnings for forms that change what the model reads."""


def in_forms(inputs: TemplateInput, names: Sequence[str]) -> TemplateInput:
    """Apply forms to a conversation one after the other."""
    for name in names:
        inputs = FORMS[name](inputs)
    return inputs


_TEXTS = ("content", "reasoning_content", "thinking", "name")
_IDS = ("id", "tool_call_id")
_LONGEST = 8  # turns of the longest stretch that is looked for again right behind itself


def probe_of(inputs: TemplateInput) -> TemplateInput:
    """Return the probe of a conversation in its standard form. Stretches of equal structure beyond the second are left out."""
    turns = _shortened([_structure(message) for message in inputs["messages"]])
    tools = [_tool(tool) for tool in inputs.get("tools") or ()]
    return {**inputs, "messages": turns, "tools": tools or None}


def filled(probe: TemplateInput) -> TemplateInput:
    """Return a probe with a different word in each place. None of the words occurs elsewhere in it."""
    digits, number = unused_digits(written(probe)), count()

    def fill(part: Any) -> Any:
        if part == _PLACE:
            return f"w{next(number)}x{digits}"
        if isinstance(part, dict):
            return {key: fill(each) for key, each in part.items()}
        return [fill(each) for each in part] if isinstance(part, list) else part

    return {**probe, "messages": fill(probe["messages"]), "tools": fill(probe["tools"])}


_PLACE = "\0place"  # stands for a text; a caller's text that is the same only adds a word


def _structure(part: Any, key: str = "") -> Any:
    """Return a part of a message with places for its texts. key: under which it stands."""
    if key == "arguments" and isinstance(part, dict):
        return {"a": _PLACE} if part else part
    if isinstance(part, dict):
        return {name: _structure(each, name) for name, each in part.items()}
    if isinstance(part, list):
        return [_structure(each, key) for each in part]
    if isinstance(part, str) and key in _IDS:
        return "a" * len(part)  # templates check its length
    is_text = isinstance(part, str) and key in (*_TEXTS, "arguments")
    return _PLACE if is_text and part.strip() else part


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    named = {key: _PLACE for key in ("name", "description") if function.get(key)}
    return {**tool, "function": {**function, **named}}


def _shortened(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop each stretch that equals both of the two before it: long conversations have the structure of short ones."""
    made: list[dict[str, Any]] = []
    kinds: list[str] = []
    for turn in turns:
        made.append(turn)
        kinds.append(json.dumps(turn, sort_keys=True, default=str))
        for n in range(1, _LONGEST + 1):
            if len(kinds) >= 3 * n and kinds[-n:] == kinds[-2 * n : -n] == kinds[-3 * n : -2 * n]:
                del made[-n:], kinds[-n:]
                break
    return made


# -- words that stand nowhere ------------------------------------------------------------------------------------------

_DIGITS = 16
_LEFTOVER = 9  # so many digits of the prefix show that a template has cut a stand-in


def unused_digits(*written: str) -> str:
    """Return random digits that occur in none of these texts. No beginning of them is also their end, so none overlap."""
    while True:
        made = "".join(secrets.choice("0123456789") for _ in range(_DIGITS))
        borders = any(made.startswith(made[n:]) for n in range(1, _DIGITS))
        if not borders and not any(map(cut_of(made).search, written)):
            return made


def cut_of(digits: str) -> re.Pattern[str]:
    """Return a pattern for pieces of these digits."""
    return re.compile("|".join(digits[i : i + _LEFTOVER] for i in range(_DIGITS - _LEFTOVER + 1)))


def written(inputs: Mapping[str, Any]) -> str:
    """Return all that a request has, for looking things up in it."""
    return json.dumps(inputs, ensure_ascii=False, default=str)
