"""Items of OpenAI's Responses, as clients send them, as messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspec.errors import InputError
from pyspec.serve.apis.interface import text_of
from pyspec.serve.apis.tools import CALLS, OUTPUTS, SERVERS, TEXTS, call_of, result_message
from pyspec.text.forms import TELLING


def messages_of(
    given: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """A chat's messages from items: what the model said, thought and called between two turns is one. Raises InputError."""
    told = [instructions] if instructions else []
    if isinstance(given, str):
        made = [{"role": "user", "content": given}]
    else:
        made = list(_turns(given))
        while made and made[0]["role"] in TELLING:  # templates take one such message
            told.append(made.pop(0)["content"])
    return [{"role": "system", "content": "\n\n".join(told)}, *made] if told else made


def _turns(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    own: dict[str, Any] | None = None  # the model's turn that is open
    for item in items:
        if item.get("type") in SERVERS:
            continue
        said = _own_part(item)
        if said is None:
            if own is not None:
                yield own
                own = None
            yield _turn(item)
            continue
        if own is not None and _behind(own, said):
            yield own
            own = None
        own = own or {"role": "assistant"}
        calls = [*own.get("tool_calls", ()), *said.get("tool_calls", ())]
        own |= said
        if calls:
            own["tool_calls"] = calls
    if own is not None:
        yield own


def _behind(own: dict[str, Any], said: dict[str, Any]) -> bool:
    """Whether what was said begins a turn of its own: nothing is said twice in one, or after its calls."""
    return bool(own.keys() & said.keys() - {"tool_calls"}) or (
        "content" in said and "tool_calls" in own
    )


def _own_part(item: dict[str, Any]) -> dict[str, Any] | None:
    """What an item adds to a turn of the model; None where it is none of the model's."""
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
