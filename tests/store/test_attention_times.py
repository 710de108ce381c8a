"""Attention is timed for a shape of heads, once for a machine and a use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.store import attention_times
from pyspec.store.attention_times import AttentionTimes, Times, Use, behind, times_of
from pyspec.store.toy import Heads

USE = Use(512, 1)
HEADS = Heads(4, 2, 8, 8)
ON, OFF = (Times(64, *[ms] * 3) for ms in (1.0, 2.0))


Measured = tuple[list[AttentionTimes], list[Any]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Answers of the measurement, the last one for ever, and what it was asked."""
    answers, asked = [AttentionTimes((ON,), (OFF,))], []

    def measure(*what: Any) -> AttentionTimes:
        asked.append(what)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(attention_times, "_measure", measure)
    monkeypatch.setattr(attention_times.Watch, "busy", lambda *_: False)
    return answers, asked


@pytest.mark.parametrize("use", [USE, Use(64, 1, 3), Use(64, 1, 3, unified=False)])
def test_a_toy_is_timed(use: Use) -> None:
    """One text and many, in a pool and in streams."""
    timed = attention_times._measure(HEADS, use, attention_times._depths(use))
    assert timed is not None
    assert [times.depth for times in timed.on] == ([64, 256] if use.n_seq == 1 else [32])
    assert all(
        ms > 0.0 for times in (*timed.on, *timed.off) for ms in times[: 2 + (use.n_seq == 1)]
    )
    assert (timed.below is not None) is (use.n_seq > 1 and use.unified)


def test_impossible_heads_are_not_timed() -> None:
    """llama.cpp makes no model of them."""
    assert attention_times._measure(Heads(3, 2, 7, 8), USE, (8,)) is None


def test_a_context_is_as_deep_as_it_is() -> None:
    """Shallow ones are not judged by deep texts."""
    assert attention_times._depths(Use(128, 1)) == (64,)
    assert attention_times._depths(Use(8, 1)) == (1,)
    assert attention_times._depths(Use(4096, 1)) == attention_times.DEPTHS


def test_it_is_measured_once(measured: Measured) -> None:
    assert [times_of(HEADS, USE) for _ in range(3)] == [AttentionTimes((ON,), (OFF,))] * 3
    assert len(measured[1]) == 1


@pytest.mark.parametrize("what", ["threads", "sequences", "processor", "heads"])
def test_what_may_change_it_is_measured_again(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another number of threads or sequences, another processor or build, other heads."""
    times_of(HEADS, USE)
    use, heads = USE, HEADS
    if what == "threads":
        use = use._replace(n_threads=2)
    elif what == "sequences":
        use = use._replace(n_seq=4)
    elif what == "processor":
        other = attention_times.this_machine()._replace(realpath="another")
        monkeypatch.setattr(attention_times, "this_machine", lambda: other)
    else:
        heads = Heads(8, 2, 8, 8)
    times_of(heads, use)
    assert len(measured[1]) == 2


def test_a_busy_machine_is_asked_again(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found beside other programs serves until the machine is quiet."""
    answers, asked = measured
    first, then = AttentionTimes((ON,), (OFF,)), AttentionTimes((OFF,), (ON,), 0.5)
    answers[:] = [first, then]
    monkeypatch.setattr(attention_times.Watch, "busy", lambda *_: True)
    monkeypatch.setattr(attention_times, "is_quiet", lambda: False)
    assert [times_of(HEADS, USE) for _ in range(2)] == [first] * 2
    monkeypatch.setattr(attention_times, "is_quiet", lambda: True)
    assert times_of(HEADS, USE) == then
    assert len(asked) == 2


def test_what_cannot_be_read_is_measured_again(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version may have kept something else."""
    monkeypatch.setattr(attention_times, "recall", lambda *_: '{"on": 1.0}')
    assert times_of(HEADS, USE) == AttentionTimes((ON,), (OFF,))


LINE = [Times(d, 1.0 + 0.01 * d, 2.0, 3.0 + 0.5 * d) for d in (64, 256, 1024)]


@given(depth=st.floats(64.0, 1e6))
def test_a_line_is_followed_at_any_depth(depth: float) -> None:
    """Between depths that were timed, and beyond the deepest."""
    assert behind(LINE, depth) == pytest.approx((depth, 1.0 + 0.01 * depth, 2.0, 3.0 + 0.5 * depth))


def test_nothing_gets_cheaper_with_depth() -> None:
    """A time that fell was disturbed."""
    falling = [Times(64, 2.0, 2.0, 2.0), Times(256, 1.0, 1.0, 1.0)]
    assert behind(falling, 4096)[1:] == (2.0, 2.0, 2.0)


def test_one_depth_is_every_depth() -> None:
    assert behind([ON], 5000) == ON
