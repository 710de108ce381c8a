"""OpenAI's custom tools, which take a text. To the model each is a function of one string."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyspec.text.parts import AnswerPart, encodable, object_of

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


_HEX = "[0-9a-fA-F]"
_HIGH = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ALONE = rf"(?=[^\\]|\\[^u]|(?!{_LOW})\\u{_HEX}{{4}})"
_UNITS = re.compile(rf'(?:[^"\\]+|\\[^u]|(?!{_HIGH})\\u{_HEX}{{4}}|{_HIGH}{_LOW}|{_HIGH}{_ALONE})*')
"""The complete characters of a JSON string: one that is escaped as a surrogate pair needs both halves."""

_OPENS = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class CallText:
    """Decodes a custom tool's text from the call's arguments as they arrive."""

    def __init__(self) -> None:
        self._held, self._begun, self._ended = "", False, False

    def push(self, arguments: str) -> str:
        """Add to the arguments. Returns the text that is new."""
        if self._ended:
            return ""
        self._held += arguments
        if not self._begun:
            opens = _OPENS.match(self._held)
            if opens is None:
                return ""
            self._begun, self._held = True, self._held[opens.end() :]
        return self._string()

    def _string(self) -> str:
        """Take the complete characters of the string."""
        units = _UNITS.match(self._held)
        come = units[0] if units else ""
        self._held = self._held[len(come) :]
        self._ended = self._held.startswith('"')
        try:
            return encodable(json.loads(f'"{come}"'))
        except ValueError:  # not a valid call, as its end will show
            self._ended = True
            return ""

    def finish(self) -> str:
        """The text of a finished call if `push` has returned none of it."""
        return "" if self._begun else text_of_call(self._held)


class DeltaWriter:
    """Converts an answer's parts into deltas in OpenAI's format. custom: names of the request's custom tools."""

    def __init__(self, custom: Collection[str]) -> None:
        self._custom = custom
        self._call: tuple[int, CallText] | None = None  # the open call of a custom tool

    def write(self, parts: Iterable[AnswerPart], *, ended: bool) -> list[dict[str, Any]]:
        """The deltas of these parts. ended: whether they are the last."""
        made = [delta for part in parts for delta in self._part(part)]
        if ended:
            made += self._end()
        return list(filter(None, made))

    def _part(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        if part.kind == "broken":
            self._call = None  # its text has been sent already
        elif part.kind == "arguments" and self._call is not None:
            yield self._more(self._call[1].push(part.text))
        else:
            yield from self._end()
            custom = part.kind == "call" and part.text in self._custom
            yield self._begin(part) if custom else part.delta()

    def _begin(self, part: AnswerPart) -> dict[str, Any]:
        self._call = part.index, CallText()
        call = {"id": part.id, "type": "custom", "custom": {"name": part.text, "input": ""}}
        return {"tool_calls": [{"index": part.index, **call}]}

    def _more(self, text: str) -> dict[str, Any]:
        if not text or self._call is None:
            return {}
        return {"tool_calls": [{"index": self._call[0], "custom": {"input": text}}]}

    def _end(self) -> Iterator[dict[str, Any]]:
        if self._call is not None:
            yield self._more(self._call[1].finish())
            self._call = None
