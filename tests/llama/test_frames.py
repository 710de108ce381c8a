"""How many calls of ours lie between a caller and a round: each one costs time in every round of a stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.completions import PROMPT

import pyspec

_PACKAGE = str(Path(pyspec.__file__).parent)

CALLS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "create_chat_completion": (
        8,
        lambda llm: llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2),
    ),
    "create_completion": (6, lambda llm: llm.create_completion(PROMPT, max_tokens=2)),
    "generate": (5, lambda llm: next(llm.generate([5, 6]))),
    "steps": (4, lambda llm: next(llm.steps([5, 6]))),
}


def _frames() -> list[str]:
    """Functions of the package that led here, innermost first."""
    found, frame = list[str](), sys._getframe(1)
    while (frame := frame.f_back) is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            found.append(frame.f_code.co_name)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_frames_between_a_call_and_a_round(
    name: str, open_llama: Callable[..., Any], tiny_ascii: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call's own frame counts, the round's does not."""
    llm, seen = open_llama(tiny_ascii), list[list[str]]()
    loop = llm.assembly.loop
    round_ = loop.round

    def watched(*args: Any) -> Any:
        seen.append(_frames())
        return round_(*args)

    monkeypatch.setattr(loop, "round", watched)
    most, call = CALLS[name]
    call(llm)
    assert max(map(len, seen)) <= most, max(seen, key=len)
