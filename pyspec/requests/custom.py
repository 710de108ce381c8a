"""OpenAI's custom tools, which take a text: a model knows them as functions of one string."""

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
"""Parameters of the function that stands for such a tool."""


# -- in ----------------------------------------------------------------------------------------------------------------


def text_function(name: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """The function that stands for a tool. told: its description, and the form of its text, which is told and not forced."""
    form = told.get("format") or {}
    form = form.get("grammar", form)  # chats have one more level than Responses
    texts = [told.get("description")]
    if "definition" in form:
        texts.append(f"The input's form, in {form.get('syntax')}:\n{form['definition']}")
    description = "\n\n".join(filter(None, texts))
    return {"name": name, "description": description, "parameters": _TEXT_ALONE}


def text_call(name: Any, text: Any) -> dict[str, Any]:
    """The function of a call that has this text."""
    return {"name": name, "arguments": json.dumps({"input": text}, ensure_ascii=False)}


def as_function_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of a chat; in the place of a custom one the function that stands for it."""
    if tool.get("type") != "custom":
        return tool
    told = tool["custom"]
    return {"type": "function", "function": text_function(told["name"], told)}


def with_function_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls of custom tools, if it has any, are told as calls of the functions that stand for them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_function_call(call) for call in calls]}


def _function_call(call: Any) -> Any:
    if not isinstance(call, dict) or call.get("type") != "custom":
        return call
    made = {key: value for key, value in call.items() if key != "custom"}
    told = call["custom"]
    return {**made, "type": "function", "function": text_call(told["name"], told["input"])}


# -- out ---------------------------------------------------------------------------------------------------------------


def text_of_call(arguments: str) -> str:
    """The text that arguments bring; these as they are where they were cut, or bring none."""
    given = (object_of(arguments) or {}).get("input")
    if given is None:
        return arguments
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def as_told(calls: Iterable[dict[str, Any]], custom: Collection[str]) -> list[dict[str, Any]]:
    """Calls in OpenAI's form, those of the custom tools of these names in theirs."""
    return [_told(call) if call["function"]["name"] in custom else call for call in calls]


def _told(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    custom = {"name": function["name"], "input": text_of_call(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


_HEX = "[0-9a-fA-F]"
_HIGH = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_ALONE = rf"(?=[^\\]|\\[^u]|(?!{_LOW})\\u{_HEX}{{4}})"
_UNITS = re.compile(rf'(?:[^"\\]+|\\[^u]|(?!{_HIGH})\\u{_HEX}{{4}}|{_HIGH}{_LOW}|{_HIGH}{_ALONE})*')
"""What a JSON string has that is whole: a character that is escaped as two halves is so with the second."""

_OPENS = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class CallText:
    """The text of a call, read from its arguments as they come."""

    def __init__(self) -> None:
        self._held, self._begun, self._ended = "", False, False

    def push(self, arguments: str) -> str:
        """What more of the arguments brings."""
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
        """What has come of the string, as far as it is whole."""
        units = _UNITS.match(self._held)
        come = units[0] if units else ""
        self._held = self._held[len(come) :]
        self._ended = self._held.startswith('"')
        try:
            return encodable(json.loads(f'"{come}"'))
        except ValueError:  # then it is no call, which its end will show
            self._ended = True
            return ""

    def finish(self) -> str:
        """The whole text of a call that ended, where nothing could be told of it before."""
        return "" if self._begun else text_of_call(self._held)


class DeltaWriter:
    """Makes deltas of an answer's parts, as OpenAI's clients know them. custom: names of its custom tools."""

    def __init__(self, custom: Collection[str]) -> None:
        self._custom = custom
        self._call: tuple[int, CallText] | None = None  # of a custom tool, which is being written

    def write(self, parts: Iterable[AnswerPart], *, ended: bool) -> list[dict[str, Any]]:
        """What these parts are. ended: whether nothing comes behind them."""
        made = [delta for part in parts for delta in self._part(part)]
        if ended:
            made += self._end()
        return list(filter(None, made))

    def _part(self, part: AnswerPart) -> Iterator[dict[str, Any]]:
        if part.kind == "broken":
            self._call = None  # what was written of it is out
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
