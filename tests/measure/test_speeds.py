"""Speeds from records made by hand."""

import pytest
from helpers.making import record, turn
from measure.speeds import TOTAL, geomean, summarise

FIVE = [1, 2, 3, 4, 5]


def test_speed_up_is_the_ratio_of_rates():
    plain, fast = summarise([record("plain", 1, turn(FIVE, 2.0)), record("fast", 1, turn(FIVE))])
    assert plain.speeds[TOTAL].rate == 2.0
    assert fast.speeds["qa"].speed_up == fast.geomean == 2.0


def test_repeats_count_by_their_median():
    runs = [record("plain", 1, turn(FIVE, s), repeat=i) for i, s in enumerate((1.0, 9.0, 1.0))]
    (summary,) = summarise(runs)
    assert summary.speeds[TOTAL].rate == 4.0
    assert summary.questions == 1


def test_a_category_is_the_sum_of_its_questions_and_the_spread_is_of_each():
    plain = [record("plain", q, turn(FIVE, 1.0)) for q in (1, 2)]
    fast = [record("fast", 1, turn(FIVE, 0.5)), record("fast", 2, turn(FIVE, 1.0))]
    speed = summarise([*plain, *fast])[1].speeds["qa"]
    assert speed.speed_up == pytest.approx(2.0 / 1.5)
    assert (speed.low, speed.mid, speed.high) == (1.25, 1.5, 1.75)


def test_failed_questions_are_left_out_on_both_sides():
    done = [("plain", 1, 1.0), ("plain", 2, 7.0), ("fast", 1, 0.5)]
    records = [record(who, q, turn(FIVE, s)) for who, q, s in done]
    records.append(record("fast", 2, error="no"))
    assert summarise(records)[1].speeds[TOTAL].speed_up == 2.0


def test_counts_come_from_the_answers_statistics():
    block = {"rounds": 2, "verified": 4, "accepted": 3, "relaxed": 1}
    block["timings"] = {"total_ms": 50.0, "other_ms": 1.0}
    (summary,) = summarise([record("margin", 1, turn(FIVE, speculation=block))])
    assert (summary.acceptance, summary.mean_length, summary.relaxed) == (0.75, 2.5, 0.2)
    assert summary.other == 0.02


def test_geometric_mean_of_nothing_is_zero():
    assert geomean([]) == geomean([1.0, 0.0]) == 0.0
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_each_question_keeps_its_own_ratio():
    seconds = {"plain": (2.0, 2.0, 2.0), "fast": (1.0, 4.0, 0.5)}
    records = [
        record(who, q, turn(FIVE, s), category="qa" if q < 2 else "code")
        for who, times in seconds.items()
        for q, s in enumerate(times)
    ]
    assert summarise(records)[1].ratios == {"qa": [2.0, 0.5], "code": [4.0]}
    assert summarise([*records[:2], *records[3:]])[1].ratios == {"qa": [2.0, 0.5]}
