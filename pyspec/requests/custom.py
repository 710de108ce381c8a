"""OpenAI's custom tools, which take a text. To the model each is a function of one string."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspec.text.parts import AnswerPart, object_of

_TEXT_ALONE = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of it."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of a custom tool's function."""


# -- in ----------------------------------------------------------------------------------------------------------------


def text_function(name: Any, tool: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a custom tool. Its grammar goes into the description, and is not enforced."""
    form = tool.get("format") or {}
    form = form.get("grammar", form)  # chats have one more level than Responses
    texts = [tool.get("description")]
    if "definition" in form:
        texts.append(f"The input's form, in {form.get('syntax')}:\n{form['definition']}")
    description = "\n\n".join(filter(None, texts))
    return {"name": name, "description": description, "parameters": _TEXT_ALONE}


def text_call(name: Any, text: Any) -> dict[str, Any]:
    """The function member of a call with this text."""
    return {"name": name, "arguments": json.dumps({"input": text}, ensure_ascii=False)}


def as_function_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A chat's tool, a custom one replaced by its function."""
    if tool.get("type") != "custom":
        return tool
    custom = tool.get("custom") or {}
    return {"type": "function", "function": text_function(custom.get("name"), custom)}


def with_function_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message, its calls of custom tools replaced by calls of their functions."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_function_call(call) for call in calls]}


def _function_call(call: Any) -> Any:
    if not isinstance(call, dict) or call.get("type") != "custom":
        return call
    made = {key: value for key, value in call.items() if key != "custom"}
    custom = call["custom"]
    return {**made, "type": "function", "function": text_call(custom["name"], custom["input"])}


# -- out ---------------------------------------------------------------------------------------------------------------


def text_of_call(arguments: str) -> str:
    """The text in a call's arguments, or the arguments themselves if they were cut or have none."""
    text = (object_of(arguments) or {}).get("input")
    if text is None:
        return arguments
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def openai_calls(calls: Iterable[dict[str, Any]], custom: Collection[str]) -> list[dict[str, Any]]:
    """Calls in OpenAI's format. custom: names of custom tools, whose calls have a format of their own."""
    return [_openai_call(call) if call["function"]["name"] in custom else call for call in calls]


def _openai_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    custom = {"name": function["name"], "input": text_of_call(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


class DeltaWriter:
    """Converts parts into OpenAI's deltas. custom: names of custom tools, whose calls are sent once they are whole."""

    def __init__(self, custom: Collection[str]) -> None:
        self._custom = custom
        self._call: AnswerPart | None = None  # the open call of a custom tool
        self._arguments = ""

    def write(self, parts: Iterable[AnswerPart], *, ended: bool) -> list[dict[str, Any]]:
        """The deltas of these parts. ended: whether they are the last."""
        made = [delta for part in parts for delta in self._part(part)]
        if ended:
            made += self._end()
        return list(filter(None, made))

    def _part(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        if part.kind == "broken":
            if self._call is not None:
                yield {"content": part.text}  # as in a whole answer
            self._call = None
        elif part.kind == "arguments" and self._call is not None:
            self._arguments += part.text
        else:
            yield from self._end()
            if part.kind == "call" and part.text in self._custom:
                self._call, self._arguments = part, ""
            else:
                yield part.delta()

    def _end(self) -> Iterator[dict[str, Any]]:
        if self._call is not None:
            function = {"name": self._call.text, "arguments": self._arguments}
            call = _openai_call({"id": self._call.id, "function": function})
            yield {"tool_calls": [{"index": self._call.index, **call}]}
            self._call = None
