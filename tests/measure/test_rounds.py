"""Recorded rounds: what they say is so, and what is written is read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec.measure.costs import measure_costs
from pyspec.measure.modes import Bench, parse_mode
from pyspec.measure.rounds import (
    Chain,
    RoundsHeader,
    read_answers,
    record_answer,
    unpack,
    write_rounds,
)
from pyspec.policy.types import logit
from pyspec.sampling import Sampling

PROMPT = [5, 6, 7, 5, 6]
N, KMAX = 20, 4


@pytest.fixture
def recorded(
    open_llama: Callable[..., Any], tiny_target: Path, tiny_draft: Path, tiny_companion: Path
) -> tuple[Any, list[int], list[Chain]]:
    """A model, its greedy answer, and the chains of that answer."""
    llm = open_llama(tiny_target, draft=f"lookup+{tiny_draft}", companion=tiny_companion)
    steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
    answer = [token.id for step in steps for token in step.tokens]
    chains = record_answer(llm, PROMPT, name="x", category="c", max_tokens=N, kmax=KMAX)
    return llm, answer, chains


def test_every_position_but_the_first_has_a_model_chain(recorded: Any) -> None:
    """The first token does not wait for a draft, and the last has no room for one."""
    _, answer, chains = recorded
    model = [c for c in chains if c.source == "model"]
    assert [c.t for c in model] == list(range(1, len(answer) - 1))
    assert all(c.length == len(answer) == N for c in chains)


def test_chains_end_with_the_answer(recorded: Any) -> None:
    """Four tokens where there is room for one more, else what is left."""
    _, answer, chains = recorded
    for chain in chains:
        if chain.source == "model":
            assert len(chain.ok) == min(KMAX, len(answer) - chain.t - 1)


def test_features_are_there_and_in_their_ranges(recorded: Any) -> None:
    """p, entropy, S, A, pc and agreement for each token."""
    _, _, chains = recorded
    for c in (c for c in chains if c.source == "model"):
        assert c.s is not None
        assert c.a is not None
        assert c.pc is not None
        assert c.agree is not None
        assert len(c.p) == len(c.h) == len(c.s) == len(c.a) == len(c.pc) == len(c.ok)
        assert all(0 <= x <= 1.0001 for x in [*c.p, *c.s, *c.a, *c.pc])


def test_flags_never_rise_again(recorded: Any) -> None:
    """After the first miss all are 0."""
    _, _, chains = recorded
    for chain in chains:
        assert chain.ok == sorted(chain.ok, reverse=True)


def test_matches_are_those_of_fixed_verification(recorded: Any) -> None:
    """A fixed length of 4 accepts at each round what the chain of that position says."""
    llm, answer, chains = recorded
    model = {c.t: c for c in chains if c.source == "model"}
    llm.assembly.session.engine.set_tokens(0, [])
    bench = Bench(llm)
    bench.forget()
    t = 0
    asked = bench.asked(parse_mode(f"fixed:{KMAX}+strict+model"))
    for step in llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N, **asked):
        accepted = len(step.tokens) - 1
        if t in model and t + KMAX < N:
            assert accepted == model[t].matched
        t += len(step.tokens)
    assert t == len(answer)


def test_recording_changes_nothing(recorded: Any) -> None:
    """Recording leaves the model as it was."""
    llm, answer, _ = recorded
    steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
    assert [token.id for step in steps for token in step.tokens] == answer
    assert llm.last_speculation["verified"] > 0


def test_what_is_written_is_read_again(recorded: Any, tmp_path: Path) -> None:
    """Same answers, same chains."""
    _, answer, chains = recorded
    path = tmp_path / "rounds.jsonl"
    count = write_rounds(path, RoundsHeader(1, "t", "d", "c", KMAX), chains)
    with path.open("rb") as lines:
        (read,) = read_answers(lines)
    assert read.length == len(answer)
    assert len(read.model) + len(read.lookup) == count == len(chains)
    for chain in chains:
        other = (read.model if chain.source == "model" else read.lookup)[chain.t]
        assert other == chain


def test_what_is_packed_is_read_again_within_a_step(recorded: Any, tmp_path: Path) -> None:
    """A name in .npz keeps every place, source and acceptance; probabilities within a 16th of a logit."""
    _, _, chains = recorded
    path = tmp_path / "rounds.npz"
    assert write_rounds(path, RoundsHeader(1, "t", "d", "c", KMAX), chains) == len(chains)
    (read,) = unpack(path)
    for chain in chains:
        other = (read.model if chain.source == "model" else read.lookup)[chain.t]
        assert (other.ok, other.match_length, other.choices) == (
            chain.ok,
            chain.match_length,
            chain.choices,
        )
        for one, two in zip(chain.p, other.p, strict=True):
            assert abs(logit(one) - logit(two)) <= 1 / 16


def test_recording_ends_when_its_time_is_up(recorded: Any) -> None:
    """An answer that would take longer than the profile may is cut, and what was seen of it counts."""
    llm, _, _ = recorded
    chains = record_answer(llm, PROMPT, name="x", category="c", max_tokens=N, kmax=KMAX, until=0.0)
    assert all(chain.t < 2 for chain in chains)


def test_costs_without_any_time_to_spare(recorded: Any) -> None:
    """One row and two are measured all the same, at the depth that is quick to reach: no curve goes without them."""
    llm, _, _ = recorded
    costs = measure_costs(llm, PROMPT, kmax=2, depths=(8, 200), budget_s=0.0)
    assert {depth: set(rows) for depth, rows in costs.target.items()} == {8: {1, 2}}
    assert costs.draft_step > 0
