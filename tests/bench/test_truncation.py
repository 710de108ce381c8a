"""`bench/truncation.py`: ways to draw against rows made by hand, rounds counted by hand, and a tiny model as its own draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyspec._lib import ffi, lib
from pyspec.sampling.chain import Sampling

HOW = Sampling(temperature=0.8, top_k=3, top_p=0.7, min_p=0.05, seed=5)
P = np.array([0.02, 0.4, 0.3, 0.16, 0.12])
"""Of each id."""


def left(way, how=HOW, p=P) -> set[int]:
    """The ids that come at many places."""
    row = np.log(p).astype(np.float32)
    return {way.draw(row, how, at) for at in range(400)}


def test_a_way_draws_under_its_own_bounds(script) -> None:
    """In the chain's order: top-p is of what top-k left, and the token that reaches it stays."""
    way = script("truncation").Way
    assert left(way()) == {0, 1, 2, 3, 4}
    assert left(way(), Sampling(temperature=0.8, min_p=0.35)) == {1, 2, 3}
    assert left(way(top_k=True)) == {1, 2, 3}
    assert left(way(top_p=True)) == {1, 2}
    assert left(way(top_k=True, top_p=True), Sampling(top_k=3, top_p=0.45)) == {1}
    assert left(way(top_p=True), Sampling(top_k=3, top_p=0.45)) == {1, 2}
    assert left(way(alone=True), Sampling(top_p=0.45, min_p=0.0)) == {0, 1, 2, 3, 4}
    assert left(way(alone=True), Sampling(top_p=0.39, min_p=0.0)) == {1}
    assert left(way(likeliest=True)) == {1}


@pytest.mark.parametrize("factor", [0.8, 1.0])
def test_min_p_alone_is_what_the_engine_draws(script, factor: float) -> None:
    """At each place of a text, at the target's temperature and at a factor of it."""
    row = (3.0 * np.random.default_rng(1).standard_normal(500)).astype(np.float32)
    how = ffi.new("ps_coupling *", {"seed": 5, "temperature": 0.8 * factor, "min_p": 0.05})
    out, view = ffi.new("ps_row *"), ffi.from_buffer("float[]", row)
    way = script("truncation").Way(factor)
    for at in range(100):
        assert lib.ps_draw(view, len(row), how, at, out) == lib.PS_OK
        assert way.draw(row, HOW, at) == out.first


def test_rounds_begin_behind_the_targets_own_token(script) -> None:
    """Two right, then none, then more than the answer has left."""
    answer = script("truncation").Answer(10, 16, {10: {"w": 2}, 13: {"w": 0}, 14: {"w": 4}}, {})
    assert answer.verifies("w") == 3
    assert answer.verifies("other") == 6


@pytest.mark.parametrize(
    "sampler",
    ["top_p=0.9", "dynatemp_range=0.7", "xtc_probability=0.5", "dry_multiplier=0.8", "repeat_penalty=1.2"],
)  # fmt: skip
def test_a_model_that_drafts_for_itself_is_right_by_the_targets_chain(
    script, open_llama, tiny_ascii: Path, sampler: str
) -> None:
    """All tokens of every draft under all that the target does, fewer by min-p alone."""
    truncation, llm = script("truncation"), open_llama(tiny_ascii, draft=tiny_ascii)
    how = truncation.arguments("", [], temp=0.8, tokens=30, length=4)
    told = list(truncation.answers(llm, [[40 + i, 50, 60] for i in range(5)], sampler, how))
    chains = [(one.end - at, n) for one in told for at, n in one.right.items()]
    assert len(chains) > 20
    short = {way: sum(one.unknown[way] for one in told) for way in told[0].unknown}
    right = [n[truncation.CHAIN] == min(4, left - 1) for left, n in chains]
    assert right.count(False) == short[truncation.CHAIN] < len(right) / 10
    other = "always the likeliest" if "top_p" in sampler else truncation.NOW
    assert sum(n[other] for _, n in chains) < sum(n[truncation.CHAIN] for _, n in chains)


def test_the_page_has_a_row_for_each_way(
    script, questions: Path, tiny_ascii: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them at each top-p, few where the sampler does more than truncate."""
    words = [str(tiny_ascii), str(questions), str(tiny_ascii), "--every", "1", "--tokens", "8"]
    out = ["--samplers", "top_p=0.9,dry_multiplier=0.8", "--out", str(tmp_path / "truncation")]
    truncation = script("truncation")
    truncation.main([*words, *out])
    printed = capsys.readouterr().out
    rows = [row.strip("| ").split(" | ") for row in printed.splitlines()[2:]]
    assert [row[1:3] for row in rows] == [
        *(["top_p=0.9", way] for way in (*truncation.WAYS, truncation.CHAIN)),
        *(["dry_multiplier=0.8", way] for way in truncation.FEW),
    ]
    assert printed in (tmp_path / "truncation" / "README.md").read_text(encoding="utf-8")
