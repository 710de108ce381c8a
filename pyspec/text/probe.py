"""Finds what a chat template leaves out, by a probe: a conversation of the same structure with a different word in each place.

The template has left out what belongs to a word that the probe's rendering lacks. Which form a template accepts is decided on
the probe, so it depends on the conversation's structure and on none of its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from pyspec.text.forms import SYSTEM_ROLES, TemplateInput
from pyspec.text.veil import unused_digits, written

_TEXTS = ("content", "reasoning_content", "thinking", "name")
_LONGEST = 8
"""Turns of the longest stretch that is looked for again right behind itself."""


def probe_of(inputs: TemplateInput) -> TemplateInput:
    """Return the probe of a conversation in its standard form. Stretches of equal structure beyond the second are left out."""
    turns = _shortened([_turn(message) for message in inputs["messages"]])
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

    return {
        **probe,
        "messages": fill(probe["messages"]),
        "tools": fill(probe["tools"]),
    }


_PLACE = "\0place"
"""Stands for a text. A caller's text that is the same only adds a word."""


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    made = {key: _field(key, value) for key, value in message.items()}
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _field(key: str, value: Any) -> Any:
    if key == "role" or not isinstance(value, str):
        return value
    if key == "tool_call_id":
        return _id(value)
    return _PLACE if key in _TEXTS and value.strip() else ("x" if value else "")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    held = {"a": _PLACE} if arguments and isinstance(arguments, dict) else arguments
    made = _PLACE if isinstance(arguments, str) else held
    return {
        **{key: _id(value) if key == "id" else value for key, value in call.items()},
        "function": {"name": _PLACE, "arguments": made},
    }


def _id(value: Any) -> Any:
    """Return an id of the same length, which is what templates check."""
    return "a" * len(value) if isinstance(value, str) else value


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


# -- completeness of a rendering -----------------------------------------------------------------------------------------


_INPUT_ROLES = ("user", "tool", "function", *SYSTEM_ROLES)
_SWITCH = re.compile(r"/(?:no_?)?think\b")
# templates read these switches and remove them


def missing(text: str, inputs: TemplateInput) -> int:
    """Count what a rendering lacks or distorts of its conversation: 0 if it is complete.

    This is exact for a conversation with a word of its own in each place; in others, words may stand elsewhere too.
    """
    messages = inputs["messages"]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    tools = [tool.get("function", tool) for tool in inputs.get("tools") or ()]
    wanted = [function["name"] for function in calls]
    wanted += [tool.get(key) for tool in tools for key in ("name", "description")]
    wanted += [m["content"] for m in messages if m["role"] in _INPUT_ROLES or m.get("tool_calls")]
    arguments = [function["arguments"] for function in calls]
    lost = sum(not _is_in(text, want) for want in wanted if isinstance(want, str))
    lost += sum(str(each) in text for each in arguments if each and isinstance(each, dict))
    # the last two find values that the template wrote as Python does
    return lost + (text.count("None") if any(m["content"] is None for m in messages) else 0)


def _is_in(text: str, wanted: str) -> bool:
    pieces = [piece.strip() for piece in _SWITCH.split(wanted)]
    return all(
        piece in text or json.dumps(piece, ensure_ascii=False)[1:-1] in text for piece in pieces
    )
