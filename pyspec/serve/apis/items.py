"""Conversion of items of OpenAI's Responses into messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspec.errors import InputError
from pyspec.serve.apis.interface import text_of
from pyspec.serve.apis.tools import CALLS, OUTPUTS, SERVERS, TEXTS, call_of, result_message
from pyspec.text.forms import SYSTEM_ROLES


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
        made = list(_turns(items))
        while made and made[0]["role"] in SYSTEM_ROLES:  # templates take one such message
            system.append(made.pop(0)["content"])
    return [{"role": "system", "content": "\n\n".join(system)}, *made] if system else made


def _turns(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    own: dict[str, Any] | None = None  # the model's open turn
    for item in items:
        if item.get("type") in SERVERS:
            continue
        part = _own_part(item)
        if part is None:
            if own is not None:
                yield own
                own = None
            yield _turn(item)
            continue
        if own is not None and _behind(own, part):
            yield own
            own = None
        own = own or {"role": "assistant"}
        calls = [*own.get("tool_calls", ()), *part.get("tool_calls", ())]
        own |= part
        if calls:
            own["tool_calls"] = calls
    if own is not None:
        yield own


def _behind(own: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether a part needs a new turn: a turn has one content and one reasoning, and no content after calls."""
    return bool(own.keys() & part.keys() - {"tool_calls"}) or (
        "content" in part and "tool_calls" in own
    )


def _own_part(item: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a turn that one of the model's items is; None for other items."""
    kind = item.get("type", "message")
    if kind in CALLS:
        return {"tool_calls": [call_of(item)]}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"reasoning_content": text_of(parts, TEXTS)}
    if kind == "message" and item.get("role") == "assistant":
        return {"content": text_of(item["content"], TEXTS)}
    return None


def _turn(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item["role"], "content": text_of(item["content"], TEXTS)}
    if kind in OUTPUTS:
        return result_message(item)
    if kind == "item_reference":
        raise InputError(
            "item_reference needs stored responses, and none are stored",
            "send the items themselves, as clients do where store is false",
        )
    raise InputError(
        f"an item of the type {str(kind)[:40]!r} cannot be read",
        "use messages, calls of tools that you run, their outputs, and reasoning",
    )
