"""Counting: strict and margin agreement, accepted lengths, steps, scores."""

import numpy as np
import pytest

from models.recipe import scores
from models.recipe.rows import Meta

META = Meta("0", 2, 300, 2)


def answer(best, second, gap=5.0):
    """Rows whose two best tokens are given and `gap` nats apart; the best logit is 20."""
    rows = np.zeros(len(best), META.row_dtype())
    rows["ids"] = np.stack([best, second], 1)
    rows["logp"] = [-0.1, -0.1 - gap]
    rows["lse"] = 20.1
    return rows


def test_share_counts_first_choices():
    score = scores.Score()
    score.add("qa", answer([1, 2, 3, 4], [9, 9, 9, 9]), np.array([[1, 2, 3, 9]]))
    assert score.share("qa") == 0.75


@pytest.mark.parametrize(("gap", "share"), [(0.5, 1.0), (1.5, 0.75)])
def test_margin_takes_a_close_runner_up(gap, share):
    score = scores.Score()
    rows = answer([1, 2, 3, 4], [9, 9, 9, 9], gap)
    score.add("qa", rows, np.array([[1, 2, 3, 9]]))
    assert score.margin_share() == share


def test_rounds_emit_the_targets_token_too():
    right = np.array([[True, True, False, True]])
    assert scores.accepted_in_rounds(right, 4) == (3, 2)
    assert scores.accepted_in_rounds(np.ones((1, 8), bool), 3) == (6, 2)


def test_later_steps_count_only_after_right_ones():
    score = scores.Score()
    guess = np.array([[1, 9, 3], [1, 2, 9]])
    score.add("qa", answer([1, 2, 3], [8, 8, 8]), guess)
    assert score.by_step() == [pytest.approx(2 / 3), 1.0]


def test_lookup_is_the_one_that_ships():
    """After 1 2 3 4 1 2 it drafts 3 4, and 4 again from the row after; a step without a draft is -1."""
    rows = np.zeros(7, META.row_dtype())
    rows["token"] = [1, 2, 3, 4, 1, 2, 3]
    assert scores.lookup(rows, 6, steps=2).tolist() == [[3, 4], [-1, 4]]
    rows["token"][:3] = [5, 6, 5]
    assert scores.lookup(rows[:3], 3, steps=1).tolist() == [[-1]]
