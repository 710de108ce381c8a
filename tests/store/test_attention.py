"""Whether flash attention pays is measured for a shape of heads, kept for this machine, and followed by class and batch."""

from __future__ import annotations

from types import SimpleNamespace

import llama_cpp
import pytest
from helpers import tiny

from pyspec.batch.contexts import Contexts, Layout, Models
from pyspec.engine.target import TargetLlama
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store import attention
from pyspec.store.attention import Attention, AttentionMs, Use, attention_of, heads_of
from pyspec.store.toy import Heads

USE = Use(512, 1)
HEADS = Heads(4, 2, 8, 8)
ON, OFF = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)


@pytest.fixture
def measured(monkeypatch):
    """Answers of the measurement, the last one for ever, and what it was asked."""
    answers, asked = [AttentionMs(2.0, 1.0)], []

    def measure(heads, use, depths):
        asked.append((heads, use, depths))
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(attention, "_measure", measure)
    monkeypatch.setattr(attention.Watch, "busy", lambda *_: False)
    return answers, asked


@pytest.mark.parametrize(
    ("times", "best"),
    [
        (AttentionMs(1.0, 2.0), Attention(True)),
        (AttentionMs(2.0, 1.0), Attention(False)),
        (AttentionMs(2.0, 1.5, 1.0), Attention(True, True)),
        (AttentionMs(1.0, 1.5, 1.2), Attention(True, False)),
        (AttentionMs(3.0, 1.0, 2.0), Attention(False, False)),
    ],
)
def test_what_takes_least_is_best(times, best):
    """Of flash attention, none, and flash attention in small decodes."""
    assert times.best == best


def test_what_context_adds_is_that_of_the_choice():
    """With flash attention or without; where nothing could be told apart, it is not known."""
    rises = ((0.5, 4.0), (0.1, 0.3))
    assert AttentionMs(2.0, 1.0, deeper=rises).best == Attention(False, deeper=(0.1, 0.3))
    assert AttentionMs(1.0, 2.0, deeper=rises).best == Attention(True, deeper=(0.5, 4.0))
    assert AttentionMs(1.0, 2.0, deeper=((0.0, 4.0), rises[1])).best.deeper is None


def test_heads_are_the_files(tiny_target):
    assert heads_of(tiny_target) == Heads(*[tiny.N_HEAD] * 2, *[tiny.N_EMBD // tiny.N_HEAD] * 2)


def test_a_file_without_heads_has_flash_attention(tiny_recurrent):
    assert heads_of(tiny_recurrent) is None
    assert attention_of(tiny_recurrent, USE) == Attention(flash=True)


@pytest.mark.parametrize("use", [USE, Use(64, 1, 3), Use(64, 1, 3, unified=False)])
def test_a_toy_is_timed(use):
    """One text and many, in a pool and in streams."""
    times = attention._measure(HEADS, use, attention._depths(use))
    assert times is not None
    assert min(times[:3]) > 0.0
    assert len(times.deeper) == 2 * (use.n_seq == 1)
    assert (times.below < float("inf")) is (use.n_seq > 1 and use.unified)


def test_impossible_heads_are_not_timed():
    """llama.cpp makes no model of them."""
    assert attention._measure(Heads(3, 2, 7, 8), USE, (8,)) is None


def test_a_context_is_as_deep_as_it_is():
    """Shallow ones are not judged by deep texts."""
    assert attention._depths(Use(128, 1)) == (64,)
    assert attention._depths(Use(8, 1)) == (1,)
    assert attention._depths(Use(4096, 1)) == attention.DEPTHS


def test_it_is_measured_once(tiny_target, measured):
    assert [attention_of(tiny_target, USE).flash for _ in range(3)] == [False] * 3
    assert len(measured[1]) == 1


@pytest.mark.parametrize("what", ["threads", "sequences", "processor", "heads"])
def test_what_may_change_it_is_measured_again(tiny_target, measured, monkeypatch, what):
    """Another number of threads or sequences, another processor or build, other heads."""
    attention_of(tiny_target, USE)
    use = USE
    if what == "threads":
        use = use._replace(n_threads=2)
    elif what == "sequences":
        use = use._replace(n_seq=4)
    elif what == "processor":
        other = attention.this_machine()._replace(realpath="another")
        monkeypatch.setattr(attention, "this_machine", lambda: other)
    else:
        monkeypatch.setattr(attention, "heads_of", lambda _path: HEADS)
    attention_of(tiny_target, use)
    assert len(measured[1]) == 2


def test_a_busy_machine_is_asked_again(tiny_target, measured, monkeypatch):
    """What was found beside other programs serves until the machine is quiet."""
    answers, asked = measured
    answers[:] = [AttentionMs(1.0, 2.0), AttentionMs(2.0, 1.0)]
    monkeypatch.setattr(attention.Watch, "busy", lambda *_: True)
    monkeypatch.setattr(attention, "is_quiet", lambda: False)
    assert [attention_of(tiny_target, USE).flash for _ in range(2)] == [True] * 2
    monkeypatch.setattr(attention, "is_quiet", lambda: True)
    assert not attention_of(tiny_target, USE).flash
    assert len(asked) == 2


def test_scores_that_memory_does_not_hold_decide(tiny_target, measured, monkeypatch):
    """Without flash attention, the scores of a micro-batch lie in memory."""
    monkeypatch.setattr(attention, "machine_memory", lambda: 1 << 20)
    assert attention_of(tiny_target, Use(16, 1)).flash is False
    assert attention_of(tiny_target, USE._replace(n_ctx=1 << 20)).flash is True


def test_what_is_asked_for_is_what_there_is(tiny_target, measured):
    measured[0][:] = [AttentionMs(3.0, 1.0, 2.0)]
    assert attention_of(tiny_target, USE, flash=True) == Attention(True, below_tile=True)
    assert attention_of(tiny_target, USE, flash=False) == Attention(False)


# -- streams or a pool -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "streams", "pay"),
    [
        (AttentionMs(3.0, 2.0), AttentionMs(3.0, 1.0), True),
        (AttentionMs(3.0, 2.0), AttentionMs(3.0, 2.5), False),
        (
            AttentionMs(3.0, 2.0),
            AttentionMs(3.0, 1.9),
            False,
        ),  # less than its further passes over the weights take
        (None, AttentionMs(3.0, 2.0), False),
    ],
)
def test_streams_pay_by_measured_times(tiny_target, monkeypatch, pool, streams, pay):
    """Attention over the cells of all sequences, against passes of their own for prompts."""
    monkeypatch.setattr(attention, "times_of", lambda _, use: pool if use.unified else streams)
    assert attention.streams_pay(tiny_target, Use(256, 1, n_seq=4), 10, 1.0) is pay


# -- who follows it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch):
    def set_(flash, below_tile=False):
        for module in ("pyspec.engine.target", "pyspec.batch.contexts"):
            monkeypatch.setattr(
                f"{module}.attention_of",
                lambda _path, _use, asked=None: Attention(
                    flash if asked is None else asked, below_tile
                ),
            )

    return set_


@pytest.mark.parametrize(
    ("options", "flash", "kind"),
    [
        ({}, False, OFF),
        ({}, True, ON),
        ({"flash_attn": True}, False, ON),
        ({"flash_attn": False}, True, OFF),
    ],
)
def test_the_class_follows_it(tiny_target, found, options, flash, kind):
    found(flash)
    with SpeculativeLlama(str(tiny_target), draft="none", n_threads=1, **options) as llm:
        assert llm.context_params.flash_attn_type == kind
        assert llm.create_completion("ab", max_tokens=3)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("chosen", "options"),
    [((), {"type_v": llama_cpp.GGML_TYPE_Q8_0}), (("a card",), {}), ((), {"embedding": True})],
)
def test_where_there_is_no_choice_it_is_on(tiny_target, found, chosen, options):
    """A quantised V cache needs it, cards are faster with it, and embeddings are no answers."""
    found(flash=False)
    target = SimpleNamespace(_chosen=chosen)
    given = {"flash_attn": "auto", "n_ctx": 64, "n_threads": 1, **options}
    assert TargetLlama._flash(target, tiny_target, given)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("below_tile", [True, False])
def test_contexts_follow_it(tiny_target, found, flash, below_tile):
    """With their number of sequences, and so do the rows of their decodes."""
    found(flash, below_tile)
    models = Models(str(tiny_target), "none", "none", n_threads=1)
    contexts = Contexts(models, 4, 64, Layout(256))
    assert models.target.context_params.flash_attn_type == (ON if flash else OFF)
    assert (contexts.answering_rows < attention.TILE) is below_tile
    contexts.close()
    models.close()
