"""How many calls lie between a caller and a round: each one costs time in every round of a stream."""

import subprocess
import sys
from inspect import CO_GENERATOR
from pathlib import Path

import llama_cpp
import pytest
from helpers.completions import PROMPT
from helpers.sources import ROOT

import pyspec

_PACKAGES = tuple(str(Path(each.__file__).parent) for each in (pyspec, llama_cpp))

ASK = [{"role": "user", "content": "a"}]
CALLS = {
    "create_chat_completion": (6, 2, lambda llm: llm.create_chat_completion(ASK, max_tokens=2)),
    "a chat's stream": (6, 3, lambda llm: [*llm.create_chat_completion(ASK, max_tokens=2, stream=True)]),
    "create_completion": (7, 4, lambda llm: llm.create_completion(PROMPT, max_tokens=2)),
    "generate": (5, 3, lambda llm: next(llm.generate([5, 6]))),
    "steps": (4, 2, lambda llm: next(llm.steps([5, 6]))),
}  # fmt: skip
"""The most frames that each call may have, and how many of these may be generators."""


def _frames():
    """Functions of ours and of llama-cpp-python that led here, innermost first, and whether they are generators."""
    found, frame = [], sys._getframe(1)
    while (frame := frame.f_back) is not None:
        if frame.f_code.co_filename.startswith(_PACKAGES):
            found.append((frame.f_code.co_name, bool(frame.f_code.co_flags & CO_GENERATOR)))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_frames_between_a_call_and_a_round(name, open_llama, tiny_ascii, monkeypatch):
    """The call's own frame counts, the round's does not."""
    llm, seen = open_llama(tiny_ascii), []
    loop = llm.assembly.loop
    round_ = loop.round

    def watched(*args):
        seen.append(_frames())
        return round_(*args)

    monkeypatch.setattr(loop, "round", watched)
    most, generators, call = CALLS[name]
    call(llm)
    deepest = max(seen, key=len)
    assert len(deepest) <= most, deepest
    assert sum(is_one for _, is_one in deepest) <= generators, deepest


def test_naming_the_class_loads_neither_engine_nor_templates():
    code = "import sys; from pyspec import SpeculativeLlama; print(*sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    ours = [name for name in said.split() if name.partition(".")[0] == "pyspec"]
    assert len(ours) <= 60, ours
