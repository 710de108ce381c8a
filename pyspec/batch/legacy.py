"""Functions as OpenAI's interface had them before tools: many clients still send them, and expect to read them."""

from __future__ import annotations

from typing import Any


def as_tools(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`functions` as `tools`."""
    return [{"type": "function", "function": function} for function in functions]


def as_tool_choice(call: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """`function_call` as `tool_choice`."""
    return {"type": "function", "function": call} if isinstance(call, dict) else call


def with_tool_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose function call, if it has one, is told as a tool call."""
    if not message.get("function_call") or message.get("tool_calls"):
        return message
    rest = {key: value for key, value in message.items() if key != "function_call"}
    return {**rest, "tool_calls": [{"type": "function", "function": message["function_call"]}]}


def as_function_call(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a body or a chunk whose calls are told as one function call."""
    key = "delta" if "delta" in choice else "message"
    told = dict(choice.get(key) or {})
    calls = told.pop("tool_calls", None)
    if calls and calls[0].get("index", 0) == 0:
        told["function_call"] = calls[0]["function"]
    reason = choice.get("finish_reason")
    return {
        **choice,
        key: told,
        "finish_reason": "function_call" if reason == "tool_calls" else reason,
    }
