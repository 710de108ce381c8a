"""Drafts drawn with the target's noise keep the target's distribution: draws of two or three tokens against their joint one.

2,000 draws of some cases, and of the controls that must fail; 20,000 draws of every case where slow tests run.
"""

from contextlib import closing
from dataclasses import replace

import pytest
from helpers import draws, tiny
from helpers.draws import LIMIT, N_DRAWS, WIDE, Source, apart, pairs, sized

from pyspec.draft.simple import LengthPolicy
from pyspec.draft.types import Plan
from pyspec.sampling.chain import xtc_chance

pytestmark = draws.MANY_ANSWERS

GRAMMAR = "root ::= [a-e] [c-j]+"
LETTERS = [list(range(tiny.A, tiny.A + 5)), list(range(tiny.A + 2, tiny.A + 10))]
DRY = {"dry_multiplier": 0.4, "dry_base": 1.3, "dry_allowed_length": 1, "dry_penalty_last_n": 7}
XTC = {"xtc_probability": 0.6, "xtc_threshold": 0.08}
PENALTIES = {"repeat_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.3}


SHAPES = sized(
    ({"temperature": 0.5}, None), ({"temperature": 1.0}, None), ({"temperature": 2.0}, None),
    ({"temperature": -1.0}, None), ({"top_k": 4}, None), ({"top_p": 0.7}, None), ({"min_p": 0.1}, None),
    ({"typical_p": 0.6}, None), ({"typical_p": 0.9, "top_k": 20, "top_p": 0.9}, None),
    ({"logit_bias": {tiny.A: 1.5, tiny.A + 1: -2.0, tiny.A + 7: 3.0}}, None),
    ({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}, None), (PENALTIES, None), ({}, GRAMMAR),
    (DRY, None), ({**DRY, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["a"]}, None), (XTC, None),
    ({"dynatemp_range": 0.9, "dynatemp_exponent": 1.5}, None),
    ({**PENALTIES, **DRY, **XTC, "dynatemp_range": 0.5, "top_k": 12, "min_p": 0.02}, GRAMMAR),
    few=(1, 8, 10, 17),
)  # fmt: skip


def named(value):
    return ",".join(map(str, value)) if isinstance(value, dict) else None


@pytest.mark.parametrize(("options", "grammar", "n_draws"), SHAPES, ids=named)
def test_texts_have_the_targets_distribution(tiny_target, near_draft, options, grammar, n_draws):
    sampling = replace(WIDE, **options)
    expected = pairs(tiny_target, sampling, LETTERS if grammar else None)
    with closing(Source(tiny_target, near_draft, 40, sampling, grammar)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, expected) < LIMIT
    assert 0.05 * source.drafted < source.accepted < 0.95 * source.drafted


DRAFTERS = sized(("none", 40), ("lookup", 40), ("eagle3", 20), ("mtp", 20), few=(1, 2))


@pytest.mark.parametrize(("kind", "n_seq", "n_draws"), DRAFTERS)
def test_every_drafter_keeps_the_distribution(
    tiny_target, tiny_eagle3, headed, kind, n_seq, n_draws
):
    target = headed if kind == "mtp" else tiny_target
    sampling, draft = replace(WIDE, temperature=1.5), tiny_eagle3 if kind == "eagle3" else kind
    with closing(Source(target, draft, n_seq, sampling)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(target, sampling)) < LIMIT
    assert (source.drafted > 0) is (kind != "none")


SHAPED = {**PENALTIES, "typical_p": 0.8, "logit_bias": {tiny.A: 2.0}, "min_p": 0.02}


@pytest.mark.parametrize(("options", "n_draws"), sized(({},), (SHAPED,), few=(1,)))
def test_long_drafts_keep_the_distribution(tiny_target, near_draft, options, n_draws):
    sampling = replace(WIDE, **options)
    with closing(Source(tiny_target, near_draft, 20, sampling, length=4)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(tiny_target, sampling)) < LIMIT
    assert source.drafted > 4 * n_draws


class Nosy(LengthPolicy):
    """A schedule made of everything it may see: probabilities, the companion's view, what was accepted."""

    def __init__(self):
        super().__init__()
        self._accepted = 0

    def plan(self, places):
        length = 1 + (self._accepted + places[0].depth) % 3
        lengths = [min(length, place.room) for place in places]
        return Plan(lengths, use_companion=self._accepted % 2 == 0)

    def choose(self, drafts):
        seen = ([*d.p, *(d.s or ()), *(d.a or ()), *(d.pc or ()), *(d.agree or ())] for d in drafts)
        return [int(1e4 * sum(each)) % (draft.n + 1) for draft, each in zip(drafts, seen)]

    def observe(self, outcome):
        self._accepted += sum(seq.n_accepted for seq in outcome.seqs)


@pytest.mark.parametrize(("options", "n_draws"), sized(({},), ({"top_k": 2},), few=(1,)))
def test_a_schedule_driven_by_everything_keeps_it(tiny_target, near_draft, tiny_companion, options, n_draws):  # fmt: skip
    sampling, models = replace(WIDE, **options), (near_draft, tiny_companion)
    with closing(Source(tiny_target, models, 8, sampling, length=3, policy=Nosy())) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(tiny_target, sampling)) < LIMIT
    assert 0.1 * source.drafted < source.verified < 0.9 * source.drafted


@pytest.mark.parametrize(("position", "passes"), [(lambda at: at, True), (lambda _: 0, False)])
def test_wrong_chance_of_xtc_fails_the_same_test(
    tiny_target, near_draft, position, passes, monkeypatch
):
    """The tests above would notice: one chance for a whole text ties its tokens together."""
    wrong = lambda seed, at: xtc_chance(seed, position(at))  # noqa: E731
    monkeypatch.setattr("pyspec.sampling.chain.xtc_chance", wrong)
    sampling = replace(WIDE, **XTC)
    with closing(Source(tiny_target, near_draft, 40, sampling)) as source:
        counts = source.pairs(N_DRAWS)
    assert bool(apart(counts, pairs(tiny_target, sampling)) < LIMIT) is passes
