"""Drafts that are drawn by themselves and verified as a whole keep the target's distribution: draws of two tokens."""

from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from helpers import tiny
from helpers.answers import ask
from helpers.draws import LIMIT, MANY_ANSWERS, WIDE, Source, apart, chances, pairs, sized

from pyspec.draft.simple import LengthPolicy
from pyspec.draft.types import Plan
from pyspec.engine.options import Speculation
from pyspec.errors import EngineError

pytestmark = MANY_ANSWERS

BLOCK = replace(WIDE, noise="block")


@pytest.mark.parametrize(
    ("options", "length", "n_draws"),
    sized(
        ({"temperature": 0.5}, 2), ({}, 1), ({}, 2), ({"temperature": 2.0}, 4), ({"temperature": -1.0}, 4),
        ({"top_k": 4}, 4), ({"top_p": 0.7}, 2), ({"min_p": 0.1}, 4), ({"typical_p": 0.6}, 2),
        ({"dynatemp_range": 0.9, "dynatemp_exponent": 1.5}, 4),
        ({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}, 4),
        few=(3, 6, 10),
    ),
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_texts_have_the_targets_distribution(tiny_target, near_draft, options, length, n_draws):
    sampling = replace(BLOCK, **options)
    with closing(Source(tiny_target, near_draft, 40, sampling, length=length)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(tiny_target, sampling)) < LIMIT
    assert 0.05 * source.drafted < source.accepted < 0.95 * source.drafted


@pytest.mark.parametrize(
    ("kind", "n_seq", "n_draws"), sized(("lookup", 40), ("eagle3", 20), ("mtp", 20), few=(0, 1))
)
def test_every_drafter_keeps_the_distribution(
    tiny_target, tiny_eagle3, headed, kind, n_seq, n_draws
):
    """Heads draw by themselves; what lookup proposes was not drawn, and is compared with the target's choice."""
    target = headed if kind == "mtp" else tiny_target
    drafter = tiny_eagle3 if kind == "eagle3" else kind
    sampling = replace(BLOCK, temperature=1.5)
    with closing(Source(target, drafter, n_seq, sampling, length=3)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(target, sampling)) < LIMIT
    assert source.drafted > 0


def test_more_is_accepted_than_with_shared_noise(tiny_target, near_draft):
    shares = []
    for noise in ("coupled", "block"):
        with closing(
            Source(tiny_target, near_draft, 40, replace(WIDE, noise=noise), length=4)
        ) as source:
            source.pairs(2_000)
        shares.append(source.accepted / source.drafted)
    assert shares[1] > 1.05 * shares[0]


# -- the same test catches a wrong rule and a policy that looks ----------------------------------------------------------


def rest(p, q, weight):
    """What is drawn behind a token that was not accepted."""
    left = np.maximum(weight * p - q, 0.0)
    return left / left.sum() if left.any() else p


def verified(p, q, drafted, rng, residual):
    """The tokens of a round by arXiv 2403.10444. p: n + 1 rows of the target, q: n of the draft, which drew `drafted`."""
    weight, kept, at = 1.0, 0, 1.0
    for i, token in enumerate(drafted):
        left = np.maximum(weight * p[i] - q[i], 0.0).sum()
        if i and rng.random() < left / (left + 1.0 - weight):
            kept, at = i, weight
        weight = min(1.0, weight * p[i][token] / q[i][token])
    if rng.random() < weight:
        return [*drafted, int(rng.choice(len(p[-1]), p=p[-1]))]
    return [*drafted[:kept], int(rng.choice(len(p[kept]), p=residual(p[kept], q[kept], at)))]


def settled(unlikely):
    """The first token stays, and whether a second is drawn depends on it."""
    return 1 if unlikely else 2


def peeking(unlikely):
    """The first token is dropped for what it is."""
    return 0 if unlikely else 2


@pytest.mark.parametrize(
    ("residual", "length", "passes"),
    [(rest, settled, True), (lambda p, _q, _weight: p, settled, False), (rest, peeking, False)],
    ids=["right", "the target's own row behind a refused token", "peeking"],
)
def test_a_wrong_rule_fails_the_same_test(tiny_target, near_draft, residual, length, passes):
    (p, then), (q, behind) = chances(tiny_target, WIDE), chances(near_draft, WIDE)
    rng, counts, n_vocab = np.random.default_rng(3), Counter(), len(p)
    for _ in range(20_000):
        first = int(rng.choice(n_vocab, p=q))
        drafted = [first, int(rng.choice(n_vocab, p=behind[first]))][: length(q[first] < 0.05)]
        rows = [p, then[first], p]  # what comes third is not looked at
        text = verified(
            rows[: len(drafted) + 1], [q, behind[first]][: len(drafted)], drafted, rng, residual
        )
        if len(text) < 2:
            text.append(int(rng.choice(n_vocab, p=then[text[0]])))
        counts[tuple(text[:2])] += 1
    assert bool(apart(counts, pairs(tiny_target, WIDE)) < LIMIT) is passes


class Peeking(LengthPolicy):
    """Drops the last token of each draft."""

    def plan(self, places):
        return Plan([min(3, place.room) for place in places])

    def choose(self, drafts):
        return [max(0, draft.n - 1) for draft in drafts]


def test_the_engine_refuses_a_policy_that_looks(open_llama, tiny_target, near_draft, monkeypatch):
    """A draft that was drawn is verified whole; one that shares the target's noise may be cut."""
    llm = open_llama(tiny_target, draft=near_draft)
    monkeypatch.setattr(llm.policies, "of", lambda *_: Peeking())
    assert ask(llm, [tiny.A, tiny.A + 1], 20, replace(BLOCK, seed=3, noise="coupled")).ids
    with pytest.raises(EngineError):
        ask(llm, [tiny.A, tiny.A + 1], 20, replace(BLOCK, seed=3))


@pytest.mark.parametrize("length", ["auto", "fixed:3", "confidence:0.5", "companion"])
def test_each_policy_verifies_whole_drafts(
    open_llama, tiny_target, near_draft, tiny_companion, length
):
    """A companion must not decide by what was drawn, so it is not asked."""
    llm = open_llama(tiny_target, draft=near_draft, companion=tiny_companion)
    ask(
        llm, [tiny.A, tiny.A + 1], 60, replace(BLOCK, seed=3), speculation=Speculation(length=length),
    )  # fmt: skip
    told = llm.last_speculation
    assert told["sampling"] == "block"
    assert told["drafted"] == told["verified"]
    assert told["drafted"] > 0 or length == "auto"
    assert told["choice"]["rounds_with_companion"] == 0


def test_a_seed_and_fixed_lengths_repeat_a_text(open_llama, tiny_target, near_draft):
    llm = open_llama(tiny_target, draft=near_draft, length="fixed:3")
    first, again, other = (
        ask(llm, [tiny.A, tiny.A + 1], 40, replace(BLOCK, seed=seed)).ids for seed in (5, 5, 6)
    )
    assert first == again != other
