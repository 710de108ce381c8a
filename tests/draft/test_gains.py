"""Tests of pyspec.draft.goodput: what it learns of a round, and what it makes of that."""

from itertools import pairwise

import pytest
from measure.simulate import known_curve

from pyspec.draft import goodput
from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import ROWS, CostCurve, expand
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.simple import PlainRound
from pyspec.draft.stopping import draft_floors, forecast, learn
from pyspec.draft.switch import UseSwitch
from pyspec.draft.types import LOOKUP, MODEL, Draft, Outcome, Place, SeqOutcome

LINE = expand({1: 10.0, 64: 80.0})
"""10 ms for a row of the target, 1.1 for each more."""
SIDE = [0.05 * t for t in LINE]


def measured(**options):
    """A policy that knows what decodes cost."""
    return GoodputPolicy(known_curve({0: LINE}, SIDE, SIDE), **options)


def round_of(policy, n, accepted, *, seqs=(0,), source=MODEL, verify_rows=None):
    """A round in which each of `seqs` has a sure draft of n tokens."""
    policy.plan([Place(seq, 16, 0, 200, 50) for seq in seqs])
    kind = {"source": LOOKUP, "match_length": 30} if source == LOOKUP else {"p": [0.95] * n}
    g = policy.choose([Draft(seq, n, **kind) for seq in seqs])
    rows = verify_rows or len(seqs) + sum(g)
    found = [SeqOutcome(seq, k, min(k, accepted)) for seq, k in zip(seqs, g, strict=True)]
    steps = 0 if source == LOOKUP else n
    policy.observe(Outcome(found, LINE[len(seqs) + sum(g)], rows, 0.5 * steps, steps))


def test_prompts_that_share_a_round_are_no_cost_of_its_drafts():
    """A decode of 200 rows, most of them other texts' prompts, says of a draft what a decode of its own says."""
    gains = []
    for rows in (4, 200):
        policy = measured()
        round_of(policy, 3, 1, verify_rows=rows)
        gains.append(policy._drafting[0].gain(0.0))
    assert gains[0] == pytest.approx(gains[1])


def test_what_a_round_gained_is_its_tokens_less_their_cost():
    """Three tokens accepted of three: 3 rows of 1.1 ms and 3 steps of 0.5, at 10 ms a token, are half a token."""
    policy = measured(auto=False)
    before = policy._drafting[0].gain(0.0)
    round_of(policy, 3, 3, source=LOOKUP)  # which says nothing of the model
    assert policy._drafting[0].gain(0.0) == before
    round_of(policy, 3, 3)
    cost = (LINE[4] - LINE[1] + 3 * SIDE[1]) / LINE[1]
    brought = policy._drafting[0].gain(0.0) * 4.0 + cost  # one round and an expectation of three
    assert 2.0 < brought < 3.0  # the mean of three tokens and of what was expected


def test_a_text_without_a_draft_takes_its_row():
    """Its neighbour's drafted token is the third row: where that is expensive it is left, where only the fifth is it is not."""
    chosen = {}
    for expensive, others in ((3, ()), (3, (1,)), (5, (1,))):
        steps = expand({1: 10.0, expensive - 1: 10.5, expensive: 40.0, 64: 400.0})
        policy = GoodputPolicy(known_curve({0: steps}, SIDE, SIDE), auto=False)
        policy.plan([Place(seq, 16, 0, 200, 50) for seq in (0, *others)])
        chosen[expensive, others] = policy.choose([Draft(0, 1, [0.9])])
    assert chosen == {(3, ()): [1], (3, (1,)): [0], (5, (1,)): [1]}


def test_a_text_whose_draft_model_drafts_nothing_is_not_planned_for():
    policy = measured(auto=False)
    assert policy.plan([Place(0, 16, 0, 200, 50, longest=0), Place(1, 16)]).lengths == [0, 16]


def test_a_round_that_broke_off_teaches_nothing():
    """Its drafts were chosen and never verified: what comes next is not theirs."""
    policy = measured(auto=False)
    policy.plan([Place(0, 16, 0, 200, 50)])
    policy.choose([Draft(0, 3, [0.95] * 3)])
    policy.plan([Place(0, 16, 0, 200, 50)])
    policy.observe(Outcome([SeqOutcome(0, 3, 0)], LINE[4], 4))
    assert sum(policy.learned.calibration.seen) == 0.0


def test_the_only_answer_of_a_process_tells_the_next_how_long_answers_are():
    policy = measured()
    before = policy.experience().usual
    for n in range(10):
        policy.plan([Place(0, 16, 0, 100, 50 + n)])
    assert policy.experience().usual == pytest.approx(before + 0.2 * (10 - before))


def test_after_short_answers_one_without_a_limit_is_taken_to_be_short():
    """A prompt that pays for an answer of usual length is not read where answers end after ten tokens."""
    read = {}
    for length in (10, 300):
        policy = measured()
        for _ in range(20):
            policy._drafting[0].used(0.5, 2.0)
        for _ in range(10):
            policy.begin_sequence(0)
            policy.plan([Place(0, 16, 0, 1 << 30, 50)])
            policy.plan([Place(0, 16, 0, 1 << 30, 49 + length)])
        policy.begin_sequence(0)
        read[length] = any(policy.plan([Place(0, 16, 1000, 1 << 30, 50)]).lengths)
    assert read == {10: False, 300: True}


def test_a_text_of_which_few_tokens_were_asked_for_is_expected_to_have_them_all():
    """Of fifty tokens asked for, fifty are left at the start; without a limit, fewer are counted on."""
    drafted = {}
    for left in (60, 1 << 30):
        policy = measured()
        for _ in range(40):
            policy._drafting[0].used(0.3, 1.5)
        drafted[left] = any(policy.plan([Place(0, 16, 1800, left, 50)]).lengths)
    assert drafted == {60: True, 1 << 30: False}


def test_threads_that_changed_are_thought_of_at_once():
    table = expand({1: 10.0, 2: 25.0, 64: 900.0})
    policy = GoodputPolicy(known_curve({0: table}, SIDE, SIDE))
    assert policy.plan([Place(0, 16, 0, 200, 50)]).lengths == [0]
    policy.renew_costs()
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16):
        policy.curve.target.observe(rows, 20.0)
    assert policy.plan([Place(0, 16, 0, 200, 51)]).lengths == [16]


def test_many_texts_save_up_for_trials_no_faster_than_one():
    saved = []
    for seqs in ((0,), (0, 1, 2, 3)):
        policy = measured(auto=False)
        round_of(policy, 1, 1, seqs=seqs)
        saved.append(policy._drafting[(len(seqs) - 1).bit_length()]._credit)
    assert saved[0] == pytest.approx(saved[1]) != 0.0


def test_a_view_is_worth_what_it_changes():
    """A companion that doubts what the draft is sure of saves rows."""
    policy = measured(companion=True, auto=False)
    policy.plan([Place(0, 16, 0, 200, 50)])
    doubt = {"s": [0.0] * 8, "a": [0.0] * 8, "pc": [0.001] * 8, "agree": [False] * 8}
    (g,) = policy.choose([Draft(0, 8, [0.95] * 8, **doubt)])
    sure = measured(auto=False).choose([Draft(0, 8, [0.95] * 8)])[0]
    assert g < sure
    assert policy._view > 0.0


class Recorder(UseSwitch):
    """Keeps what it is asked."""

    def __init__(self):
        super().__init__()
        self.asked: list[tuple[float, ...]] = []

    def on(self, seq, expected, cost, left):
        self.asked.append((expected, cost(), left))
        return False


def test_a_switch_is_asked_with_what_the_text_has_left():
    """Nothing is to be caught up with where the draft is up to date; without a limit, little more is counted on."""
    asked = Recorder()
    policy = measured()
    policy._drafting.default_factory = lambda: asked
    policy.plan([Place(0, 16, 0, 20, 50), Place(1, 16, 100, 20, 50), Place(2, 16, 0, 1 << 30, 50)])
    (_, *first), (_, cost, _), (_, _, unlimited) = asked.asked
    assert first == [0.0, 20.0]
    assert cost == pytest.approx(policy._price * (policy.curve.draft.time(101) - SIDE[1]))
    assert 20.0 < unlimited < 100.0


def test_a_companion_saves_up_for_trials_too():
    """Where it is not used, tokens go on to its credit."""
    policy = measured(companion=True)
    for _ in range(80):
        policy.watch(PlainRound(1, 10.0, 10.0, 50))
    assert policy._scoring._credit == pytest.approx(policy._drafting[0]._credit)
    assert policy._scoring._credit > 0.0


def test_rows_cost_what_they_do_where_the_longest_text_is():
    """Texts of a batch share a decode, and the one with most context has the say."""
    deep = [2.0 * t for t in LINE]
    policy = GoodputPolicy(known_curve({0: LINE, 4096: deep}, SIDE, SIDE))
    policy.plan([Place(0, 16, 0, 200, 4096), Place(1, 16, 0, 200, 0)])
    assert policy._rows[:5] == pytest.approx(deep[:5])


def test_a_round_may_have_more_texts_than_were_planned_for():
    """Those that only read prompts have no place; with seventy of them a round has more rows than the table."""
    policy = measured()
    policy.plan([Place(0, 16, 0, 200, 50)])
    (g,) = policy.choose([Draft(0, 16, [0.95] * 16)])
    seen = [SeqOutcome(0, g, 0), *(SeqOutcome(seq, 0, 0) for seq in range(1, 71))]
    policy.observe(Outcome(seen, 90.0, 71 + g, 0.5 * g, g))
    assert policy.curve.target.count(71 + g) == 1


def found(n=4, seq=0):
    """A lookup draft behind a match of six tokens."""
    return Draft(seq, n, source=LOOKUP, match_length=6)


def test_a_draft_that_was_not_verified_teaches_its_first_token():
    """The target's own choice says for nothing whether it was right; a lookup is forecast as its estimator says."""
    learned = Acceptance()
    before = forecast(learned, found()).survival[0]
    assert before == learned.lookup.predict(6, 1)[0]
    for _ in range(3):
        learn(learned, forecast(learned, found()), SeqOutcome(0, 0, 0, next_match=False))
    assert forecast(learned, found()).survival[0] < before


def test_a_draft_that_pays_in_no_text_is_not_looked_at():
    """Rows too expensive for any acceptance that a text may have: not even once, while a draft that may pay is tried."""
    drafted = []
    for points in ({1: 10.0, 2: 25.0, 64: 900.0}, {1: 10.0, 64: 80.0}):
        table = expand(points)
        policy = GoodputPolicy(known_curve({0: table}, [0.05 * t for t in table], table))
        drafted += policy.plan([Place(0, 16, 0, 200, 50)]).lengths
    assert drafted == [0, 16]


def test_drafting_costs_more_where_rounds_with_drafts_win():
    """A ms could go into the next round with drafts: floors rise once such rounds have won, with the same curve and table."""
    table = expand({1: 10.0, 2: 12.0, 16: 40.0})
    floors = []
    for won in (0.2, 2.0):
        policy = GoodputPolicy(known_curve({0: table}, [0.1 * t for t in table], table))
        for _ in range(20):
            policy._drafting[0].used(won, 3.0)
        floors.append(policy.plan([Place(0, 16, 0, 200, 50)]).floors)
    assert all(high > low for low, high in zip(floors[0][:10], floors[1][:10], strict=True))


@pytest.mark.parametrize("left", [20, 60])
def test_catching_up_that_costs_more_than_is_left_is_not_begun(left):
    policy = measured()
    for _ in range(40):
        policy._drafting[0].used(3.0, 5.0)
    lag = int(left * LINE[1] / (SIDE[2] - SIDE[1])) + 1
    assert policy.plan([Place(0, 16, lag, left, 50)]).lengths == [0]
    policy.begin_sequence(0)
    assert policy.plan([Place(0, 16, lag // 5, left, 50)]).lengths == [16]


class Willing(UseSwitch):
    """Always drafts."""

    def on(self, *_, **__):
        return True


def test_one_text_of_a_batch_learns_what_drafts_cost_before_all_pay():
    """The one with the least to read, while few rounds had drafts."""
    policy = GoodputPolicy(CostCurve.prior())
    policy._drafting.default_factory = Willing
    batch = [Place(seq, 16, lag, 400, 300) for seq, lag in enumerate((200, 30, 100))]
    for _ in range(2):
        assert [n > 0 for n in policy.plan(batch).lengths] == [False, True, False]
        policy.choose([Draft(1, 4, [0.99] * 4)])
        seen = [SeqOutcome(seq, *[4 * (seq == 1)] * 2) for seq in range(3)]
        policy.observe(Outcome(seen, 11.0, 7, 4.0, 4))
    assert all(policy.plan(batch).lengths)


def test_floors_follow_what_is_learned_in_one_round_of_a_hundred(monkeypatch):
    """Or of two hundred, however long the process has run; at first every few rounds."""
    made: set[int] = set()

    def floors(*given):
        made.add(policy._lessons)
        return draft_floors(*given)

    policy = GoodputPolicy(CostCurve.prior(), auto=False)
    monkeypatch.setattr(goodput, "draft_floors", floors)
    for _ in range(3000):
        policy.plan([Place(0, 16, 0, 10_000, 50)])
        policy.choose([Draft(0, 4, [0.9] * 4)])
        policy.observe(Outcome([SeqOutcome(0, 2, 1)], 15.0, 3, 4.0, 4))
    rounds = sorted(made)
    assert all(100 <= b - a <= 200 for a, b in pairwise(rounds) if a > 1000)
    assert len([at for at in rounds if at < 10]) >= 4


def judged(**options):
    return GoodputPolicy(CostCurve.prior(ROWS, 0.1, 0.1), companion=True, **options)


def test_the_companions_reading_is_weighed_before_it_is_paid():
    policy = judged()
    policy.begin_sequence(0)
    for _ in range(40):
        policy._scoring.used(0.5, 3.0)
    used = {}
    for unread, left in ((30, 60), (30_000, 60), (3000, 1 << 30)):
        policy.begin_sequence(0)
        place = Place(0, 16, 0, left, 50, companion_lag=unread)
        used[unread] = policy.plan([place]).use_companion
    assert used == {30: True, 30_000: False, 3000: False}


def test_the_companions_reading_is_no_evidence_against_it():
    """A round in which it read a prompt of 500 tokens says of its worth what any other says."""
    gains = {}
    for read in (0, 500):
        policy = judged(auto=False)
        policy.plan([Place(0, 16, 0, 200, 600, read)])
        agree = {"s": [0.9] * 2, "a": [1.0] * 2, "pc": [0.9] * 2, "agree": [True] * 2}
        policy.choose([Draft(0, 2, [0.8] * 2, **agree)])
        took = policy.curve.companion.time(2 + read)
        seen = [SeqOutcome(0, 2, 1)]
        policy.observe(Outcome(seen, 14.0, 3, 2.0, 2, took, 2 + read, companion_read=read))
        gains[read] = policy._scoring.gain(0.0)
    assert gains[0] == pytest.approx(gains[500], rel=0.05)


def test_what_the_companion_reads_is_what_the_longest_unread_text_has():
    policy = judged()
    for _ in range(40):
        policy._scoring.used(0.5, 3.0)
    places = [Place(0, 16, 0, 60, 50), Place(1, 16, 0, 60, 50, companion_lag=30_000)]
    assert not policy.plan(places).use_companion


def test_a_draft_by_lookup_that_is_not_verified_teaches_what_became_of_its_first_token():
    """Its round is one without drafts, and leaves a row's time to be learned with others."""
    policy = measured()
    for _ in range(60):
        policy.learned.lookup.update(2, [False])
    policy.plan([Place(0, 16, 0, 200, 50)])
    assert policy.choose([Draft(0, 4, source=LOOKUP, match_length=2)]) == [0]
    before = policy.learned.lookup.predict(2, 1)
    policy.watch(PlainRound(1, 10.0, 10.1, 50), [SeqOutcome(0, 0, 0, next_match=False)])
    assert policy.learned.lookup.predict(2, 1) < before
    assert policy.curve.target.count(1) == 0
    policy.catch_up()
    assert policy.curve.target.count(1) == 1
