"""What estimators learn from recorded rounds, and what the default policy gains on rounds it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pyspec.policy.acceptance import Acceptance, nats_lost
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.stopping import forecast, learn
from pyspec.policy.types import SeqOutcome

from .costs import MeasuredCosts
from .simulate import Answer, Chain, Player, fixed_speed


def chains_of(answers: Sequence[Answer]) -> tuple[list[Chain], list[Chain]]:
    """All chains of the draft model, and all of lookup."""
    return (
        [chain for answer in answers for chain in answer.models.values()],
        [chain for answer in answers for chain in answer.lookups.values()],
    )


def teach(
    acceptance: Acceptance, model: Sequence[Chain], lookup: Sequence[Chain]
) -> tuple[float, float]:
    """Teach the estimators every recorded chain, as a round that verified all of it.

    Returns the mean log-loss of the draft's tokens in nats, without the companion's view, and with it where it ran.
    """
    without, with_ = [], []
    for chain in model:
        seen = forecast(acceptance, chain.draft(chain.n))
        outcome = SeqOutcome(0, chain.n, chain.matched)
        hits = outcome.hits(chain.n)
        without += [nats_lost(p, hit) for p, hit in zip(seen.without, hits)]
        with_ += [nats_lost(p, hit) for p, hit in zip(seen.with_, hits)]
        learn(acceptance, seen, outcome)
    for chain in lookup:
        hits = [i < chain.matched for i in range(chain.seen)]
        acceptance.lookup.update(chain.match_length, hits, chain.choices)
    return (fmean(without) if without else 0.0), (fmean(with_) if with_ else 0.0)


def gain_of_auto(costs: MeasuredCosts, answers: Sequence[Answer], *, companion: bool) -> float:
    """Speed-up of the default policy on recorded answers, by the measured times, without Python's own.

    Each half is played by a policy that learned from the other, since it cannot know answers still to come.
    """
    if not any(answer.models or answer.lookups for answer in answers):
        return 1.0
    ms = 0.0
    for half, other in ((answers[::2], answers[1::2]), (answers[1::2], answers[::2])):
        learned = Acceptance()
        teach(learned, *chains_of(other))
        policy = GoodputPolicy(costs.curve(), learned, companion=companion)
        ms += Player(policy, costs.times).play(half).ms
    return sum(answer.length for answer in answers) / ms / fixed_speed(answers, costs.times, 0)
