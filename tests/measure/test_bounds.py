"""Bounds on what a rule loses: who passes, who cannot, and what is stored."""

from __future__ import annotations

import random

import pytest
from helpers.making import record, turn
from measure.bounds import (
    BOUNDS,
    CHECKS,
    FEWEST,
    by_halves,
    half_of,
    sentence,
    try_rule,
)
from measure.chance import sample_size
from measure.quality import DISTINCT, LOOPS, NATS
from measure.questions import Question
from measure.variants import parse_variants

CONTROL, GOOD, BAD = "strict+fixed:4", "margin/confirm=1+fixed:4", "margin+fixed:4"
QUESTIONS = [Question(q, "qa", ["a"], [{"kind": "json"}]) for q in range(400)]


def answers(
    who, *, nats=0.0, repeats=0, rounds=12, checks=1.0, questions=QUESTIONS
):  # fmt: skip
    """An answer a question: so many nats more a token on average, and so many tokens that are said again."""
    rng = random.Random(who)  # noqa: S311 - reproducible
    tokens = [*range(24 - repeats), *range(repeats)]
    return [
        record(
            who, q.question_id,
            turn(
                tokens, nats=[0.5 + rng.gauss(nats, 0.05)] * 24, check=rng.random() < checks,
                speculation={"rounds": rounds, "relaxed": 0, "open": 0},
            ),
        )
        for q in questions
    ]  # fmt: skip


def judged(*groups):
    """What the halves say of these variants' answers."""
    return by_halves(
        [r for g in groups for r in g],
        QUESTIONS,
        parse_variants(",".join(g[0].who for g in groups)),
    )


def test_a_rule_that_loses_nothing_passes():
    """The one that brings more is chosen on one half, and confirmed on the other."""
    found = judged(answers(CONTROL), answers(GOOD, rounds=10), answers(BAD, rounds=11))
    assert found.passed
    assert found.confirmed.who == GOOD
    assert found.confirmed.gain == pytest.approx(1.2)
    assert "within all bounds" in sentence(found)


@pytest.mark.parametrize("worse", [{"nats": 0.05}, {"repeats": 6}, {"checks": 0.9}])
def test_a_rule_that_loses_is_not_chosen(worse):
    """Though it brings more; the one beside it is."""
    found = judged(answers(CONTROL), answers(GOOD, rounds=11), answers(BAD, rounds=8, **worse))
    assert found.chosen.who == GOOD
    assert found.passed


def test_nothing_gained_is_nothing_to_confirm():
    """A rule that brings no token is not worth a risk."""
    found = judged(answers(CONTROL), answers(GOOD, rounds=12))
    assert (found.chosen, found.passed) == (None, False)
    assert sentence(found).endswith("Strict.")


def test_few_questions_pass_nobody():
    """Also where no answer differs: so few would not show it."""
    few = QUESTIONS[: FEWEST // 2]
    found = judged(answers(CONTROL, questions=few), answers(GOOD, rounds=10, questions=few))
    assert found.chosen is not None
    assert not found.passed


def test_a_loss_within_its_bound_that_chance_hides_does_not_pass():
    """A mean of nothing with a wide interval is no proof, and the sentence says how many questions one would take."""
    noise = {q: (-1) ** q * 0.5 for q in range(400)}
    none = dict.fromkeys(range(400), 0.0)
    trial = try_rule(GOOD, 1.2, {NATS: noise, DISTINCT: none, LOOPS: none})
    assert trial.fits
    assert not trial.passes
    assert trial.losses[NATS].needed == sample_size(0.5006, 0.02)


def test_halves_are_of_questions_and_about_even():
    for names in (range(1000), [f"q{i}" for i in range(1000)]):
        assert 400 < sum(map(half_of, names)) < 600
    assert (half_of(1), half_of("1")) == (half_of("1"), half_of(1))


def test_checks_of_all_kinds_are_one_figure():
    """So few questions of a kind there are that each alone says nothing."""
    found = judged(answers(CONTROL), answers(GOOD, rounds=10))
    assert set(found.confirmed.losses) == {NATS, DISTINCT, LOOPS, CHECKS} <= set(BOUNDS)


def test_a_half_that_was_not_asked_confirms_nothing():
    """A run that was stopped while rules were chosen: the sentence says what is missing, not that a bound failed."""
    first = [q for q in QUESTIONS if half_of(q.question_id) == 0]
    found = judged(answers(CONTROL, questions=first), answers(GOOD, rounds=10, questions=first))
    assert (found.chosen.who, found.passed) == (GOOD, False)
    assert sentence(found) == (
        f"{GOOD} is to be confirmed still: 0 questions of the second half were answered, and {FEWEST} have to be. Strict."
    )
