"""Recorded rounds: what they say is so, and what is written is read again."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measure.contenders import Ours
from measure.pair import record_answer
from measure.simulate import Answer, load_rounds, save_rounds
from measure.tasks import Options, parse_mode

from pyspec.errors import InputError
from pyspec.sampling.chain import Sampling

PROMPT = [5, 6, 7, 5, 6]
N, KMAX = 20, 4


@pytest.fixture
def recorded(
    open_llama: Callable[..., Any], tiny_target: Path, tiny_draft: Path, tiny_companion: Path
) -> tuple[Any, list[int], Answer]:
    llm = open_llama(tiny_target, draft=f"lookup+{tiny_draft}", companion=tiny_companion)
    steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
    answer = [token.id for step in steps for token in step.tokens]
    found = record_answer(llm, PROMPT, max_tokens=N, kmax=KMAX)
    return llm, answer, found


def test_every_position_but_the_first_has_a_model_chain(recorded: Any) -> None:
    """The first token does not wait for a draft, and the last has no room for one."""
    _, answer, found = recorded
    assert [c.t for c in found.models.values()] == list(range(1, len(answer) - 1))
    assert found.length == len(answer) == N


def test_chains_end_with_the_answer(recorded: Any) -> None:
    _, answer, found = recorded
    for chain in found.models.values():
        assert chain.n == min(KMAX, len(answer) - chain.t - 1)


def test_features_are_there_and_in_their_ranges(recorded: Any) -> None:
    _, _, found = recorded
    for c in found.models.values():
        assert len(c.p) == len(c.s) == len(c.a) == len(c.pc) == len(c.agree) == c.n > 0
        assert all(0 <= x <= 1.0001 for x in [*c.p, *c.s, *c.a, *c.pc])


def test_matches_are_those_of_fixed_verification(recorded: Any) -> None:
    """A fixed length of 4 accepts at each round what the chain of that position says."""
    llm, answer, found = recorded
    model = found.models
    llm.assembly.engine.set_tokens(0, [])
    fixed = Ours(llm, parse_mode(f"fixed:{KMAX}+strict+model"))
    fixed.forget()
    t = 0
    for step in fixed.steps(PROMPT, N, Options()):
        accepted = len(step.tokens) - 1
        if t in model and t + KMAX < N:
            assert accepted == model[t].matched
        t += len(step.tokens)
    assert t == len(answer)


def test_recording_changes_nothing(recorded: Any) -> None:
    llm, answer, _ = recorded
    steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
    assert [token.id for step in steps for token in step.tokens] == answer
    assert llm.last_speculation["verified"] > 0


def test_what_is_written_is_read_again(recorded: Any, tmp_path: Path) -> None:
    _, _, found = recorded
    path = tmp_path / "rounds.gz"
    save_rounds(path, [found])
    assert load_rounds(path) == [found]


def test_a_file_of_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.gz"
    for data in (b"", b"{}", b"PK\x03\x04", gzip.compress(b""), gzip.compress(b"\xc1")):
        path.write_bytes(data)
        with pytest.raises(InputError, match="was not written by"):
            load_rounds(path)


def test_recording_ends_when_its_time_is_up(recorded: Any) -> None:
    llm, _, _ = recorded
    found = record_answer(llm, PROMPT, max_tokens=N, kmax=KMAX, until=0.0)
    assert all(t < 2 for t in (*found.models, *found.lookups))
