"""Tests of pyspec.draft.switch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.draft.switch import UseSwitch


def on(switch, seq, expected, cost, left):
    return switch.on(seq, expected, lambda: cost, left)


def play(switch, gain, rounds):
    """(uses, tokens lost) over rounds of one text in which each use gains the same."""
    uses = 0
    for _ in range(rounds):
        if on(switch, 0, 0.0, 0.0, 200.0):
            uses += 1
            switch.used(gain)
        switch.earn(1.0)
    return uses, -gain * uses


def test_a_use_that_never_pays_is_switched_off_also_for_a_new_text():
    uses, lost = play(UseSwitch(), -0.3, 4000)
    assert 0 < uses < 160
    assert lost < 0.01 * 4000 + 16.0
    switch = UseSwitch()
    play(switch, -0.5, 300)
    switch.begin(0)
    assert not on(switch, 0, 0.0, 2.0, 200.0)


def test_trials_go_on_and_find_a_change():
    switch = UseSwitch()
    play(switch, -0.1, 1000)
    play(switch, 0.8, 2000)
    assert play(switch, 0.8, 100)[0] == 100


def test_a_cost_is_weighed_against_what_is_left():
    """Reading a long prompt pays for a long answer and not for a short one, however well drafts do."""
    switch = UseSwitch()
    play(switch, 0.5, 50)
    assert on(switch, 1, 0.5, 20.0, 256.0)
    assert not on(switch, 1, 0.5, 20.0, 30.0)


def test_rounds_of_many_tokens_are_few():
    """Six tokens a round with two of them gained: 200 tokens are 33 rounds that gain 67 together, not 200 that gain 400."""
    switch = UseSwitch()
    for _ in range(100):
        switch.used(2.0, 6.0)
    assert on(switch, 0, 2.0, 60.0, 200.0)
    assert not on(switch, 1, 2.0, 80.0, 200.0)


def test_a_bad_minute_ends_no_good_use_and_a_change_does():
    """After thousands of rounds, sixty others are chance; hundreds are how it is now."""
    switch = UseSwitch()
    for _ in range(3000):
        switch.used(0.3)
    for _ in range(60):
        switch.used(-0.3)
    assert switch.gain(0.0) > 0.0
    for _ in range(290):
        switch.used(-0.3)
    assert switch.gain(0.0) < 0.0


@pytest.mark.parametrize(
    ("cost", "left", "tried"), [(4.0, 1e6, True), (24.0, 1e6, False), (4.0, 10.0, False)]
)
def test_a_trial_costs_little_however_much_was_saved(cost, left, tried):
    """And no more than is left: catching up, and 1.1 tokens in each of six rounds."""
    switch = UseSwitch()
    switch.earn(1e6)
    assert on(switch, 0, -1.0, cost, left) is tried


def test_a_trial_that_loses_ends_after_six_rounds():
    switch = UseSwitch()
    switch.earn(4000.0)
    uses = 0
    while on(switch, 0, -0.5, 0.0, 400.0):
        switch.used(-0.5)
        uses += 1
    assert 5 <= uses <= 7


def test_with_an_answer_s_end_its_trial_ends():
    for ended, goes_on in ((0, False), (1, True)):
        switch = UseSwitch()
        switch.earn(4000.0)
        assert on(switch, 0, -0.5, 1.0, 400.0)
        switch.begin(ended)
        assert on(switch, 0, -0.5, 1.0, 400.0) is goes_on


@given(
    st.lists(st.tuples(st.floats(-3.0, 15.0), st.floats(1.0, 17.0)), max_size=50), st.floats(-3, 9)
)
def test_what_is_gained_of_the_tokens_is_a_share(rounds, expected):
    switch = UseSwitch()
    for gain, tokens in rounds:
        switch.used(gain, tokens)
    assert 0.0 <= switch.share(expected) < 1.0


def test_a_gain_within_what_rounds_cost_beside_the_curve_is_left():
    switch = UseSwitch()
    assert not on(switch, 0, 0.09, 0.5, 200.0)
    assert on(switch, 0, 0.11, 0.5, 200.0)
