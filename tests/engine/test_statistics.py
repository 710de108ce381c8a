"""What a result says of itself: how much faster than without drafts."""

import pytest

from pyspec.draft.costs import SURE, CostCurve, KeptTime
from pyspec.draft.simple import FixedPolicy, PlainRound
from pyspec.engine.statistics import AnswerStatistics, Tally, plain_decode

ROW_MS, FOUR_MS, ROUNDS = 10.0, 20.0, 10


def timed_before(times):
    """A curve of a machine that earlier processes timed."""
    curve = CostCurve.prior()
    curve.begin_with({rows: KeptTime(times[rows], SURE) for rows in range(1, 17)}, {})
    return curve


def verified(n, took, rounds=ROUNDS):
    """An answer whose rounds verified and accepted n tokens and drafted one more, in so many ms of decodes."""
    tally = Tally(target_ms=took)
    for _ in range(rounds):
        tally.add(n + 1, n, n, n + 1)
    return tally


def factor(slow):
    """Of ten rounds of four tokens, on a machine `slow` times as slow as the curve says."""
    times = [0.0, ROW_MS, 14.0, 17.0, FOUR_MS, *(FOUR_MS + n for n in range(1, 61))]
    policy = FixedPolicy(3, timed_before(times))
    took = slow * FOUR_MS * ROUNDS
    return reported(policy, took, verified(3, took))["times_plain"]


@pytest.mark.parametrize("slow", [0.5, 1.0, 3.0])
def test_a_slow_machine_is_slow_for_plain_decoding_too(slow):
    """40 tokens in the time of 20 rows are twice as fast, whatever else the machine did meanwhile."""
    assert factor(slow) == pytest.approx(2.0)


def test_plain_decoding_takes_time_beside_decodes_too():
    policy = FixedPolicy(0, CostCurve.prior())
    for _ in range(32):
        policy.watch(PlainRound(1, ROW_MS, ROW_MS + 1.0, 30))
    said = reported(policy, 32 * (ROW_MS + 1.0), Tally(32))["times_plain"]
    assert said == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("tokens", [1, 4, 15])
def test_short_answers_are_held_against_the_curve_too(tokens):
    times = [0.0, *(ROW_MS + n for n in range(64))]
    said = reported(FixedPolicy(3, timed_before(times)), 5.0 * tokens, Tally(tokens))["times_plain"]
    assert said == pytest.approx(2.0)


@pytest.mark.parametrize("slow", [0.5, 1.0, 3.0])
def test_a_batch_is_held_against_a_decode_of_as_many_rows(slow):
    times = [0.0, *(ROW_MS + n for n in range(64))]
    curve = timed_before(times)
    found = plain_decode(curve.target, 2, [100], {4: 1}, slow * times[4])
    assert found is not None
    assert found.ms == pytest.approx(slow * times[2])


def timed(scatter, rows=(1, 4)):
    """A policy on an unmeasured curve that timed these counts often, each time off by this share of 10 ms a row."""
    policy = FixedPolicy(3, CostCurve.prior())
    for n in range(40):
        for each in rows:
            policy.curve.target.observe(each, ROW_MS * each * (1 + (-1) ** n * scatter))
    return policy


def said(policy):
    took = ROUNDS * 4 * ROW_MS
    return reported(policy, took, verified(3, took))


def reported(policy, spent, tally, away=0.0):
    """Of an answer that took so many ms behind its prompt."""
    timings = {
        "prefill_ms": 5.0,
        "total_ms": 5.0 + spent,
        "tokens_per_second": 1e3 * tally.tokens / spent,
    }
    return AnswerStatistics(tally, timings, away, 20, 0).report(policy)


@pytest.mark.parametrize(("scatter", "known"), [(0.01, True), (0.3, False)])
def test_a_factor_is_said_where_it_is_known_within_five_percent(scatter, known):
    """It and the plain speed are one number."""
    found = said(timed(scatter))
    rate, plain = found["timings"]["tokens_per_second"], found["plain"]
    assert [found[name] is not None for name in ("times_plain", "plain")] == [known, known]
    if known:
        assert found["times_plain"] == pytest.approx(rate / plain["tokens_per_second"], rel=1e-3)
        assert 0 < plain["error"] <= 0.05


@pytest.mark.parametrize("rows", [(), (1,), (4,)])
def test_nothing_is_claimed_from_counts_that_were_not_timed(rows):
    """Neither of one row nor of those of this answer: an assumption is no ground for a factor."""
    assert said(timed(0.01, rows))["times_plain"] is None


def test_time_of_the_reader_would_be_plain_decodings_too():
    """A slow terminal slows answers with and without drafts alike."""
    policy = timed(0.0001)
    tally = verified(0, 10 * ROW_MS, rounds=10)
    said = reported(policy, 1100.0, tally, away=1000.0)["times_plain"]
    assert said == pytest.approx(1.0)


def test_one_ratio_is_the_factor_of_answers_and_batches():
    one, other = Tally(), Tally()
    assert one.times_plain is None
    one.add_times(30.0, 10.0, 0.0)
    other.add_times(10.0, 10.0, 0.0)
    one.join(other)
    assert one.times_plain == 2.0
