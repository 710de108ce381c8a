"""Whether flash attention pays is measured for a shape of heads, kept for this machine, and followed by class and batch."""

from __future__ import annotations

import math
from types import SimpleNamespace

import llama_cpp
import pytest
from helpers import tiny
from helpers.make_gguf import ARR, BOOL, STR, U32, Gguf

from pyspec.batch.contexts import Contexts, Layout, Models
from pyspec.engine.target import TargetLlama
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store import attention
from pyspec.store.attention import Attention, AttentionMs, Window, attention_of, shape_of, weigh
from pyspec.store.attention_times import TILE, AttentionTimes, Times, Use
from pyspec.store.gguf import parse_header
from pyspec.store.toy import Heads

USE = Use(512, 1)
TIMED = AttentionTimes(
    (Times(64, 0.1, 1.0, 1.0), Times(256, 0.2, 1.0, 1.0)),
    (Times(64, 0.05, 1.0, 1.0), Times(256, 0.15, 1.0, 1.0)),
)
"""Off reads faster; both take as much more behind a deeper context."""

ON, OFF = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)


@pytest.fixture
def measured(monkeypatch):
    """What the measurement finds, and what it was asked."""
    found, asked = [TIMED], []

    def times_of(*what):
        asked.append(what)
        return found[0]

    monkeypatch.setattr(attention, "times_of", times_of)
    return found, asked


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
    assert shape_of(tiny_target).heads == Heads(
        *[tiny.N_HEAD] * 2, *[tiny.N_EMBD // tiny.N_HEAD] * 2
    )


def test_a_file_without_heads_has_flash_attention(tiny_recurrent):
    assert shape_of(tiny_recurrent) is None
    assert attention_of(tiny_recurrent, USE) == Attention(flash=True)


def test_a_window_spares_flash_attention_what_it_hides():
    """Without it, rows look at all cells that are kept: it is on where a context is much deeper than the windows."""
    window = Window(64, 0.75)
    assert not weigh(TIMED, Use(512, 1), None).best.flash
    assert not weigh(TIMED, Use(4096, 1), None).best.flash
    assert weigh(TIMED, Use(4096, 1), window).best.flash
    assert not weigh(TIMED, Use(4096, 1, swa_full=False), window).best.flash


def test_a_window_that_nothing_outgrows_changes_nothing():
    assert weigh(TIMED, USE, Window(4096, 0.5))[:2] == pytest.approx(weigh(TIMED, USE, None)[:2])


def test_context_adds_to_the_layers_that_see_it():
    """With flash attention those without a window; without it all of them, while the others keep all cells."""
    timed = AttentionTimes(*[(Times(64, 1.0, 1.0, 2.0), Times(264, 1.0, 2.0, 6.0))] * 2)
    on, off = weigh(timed, USE, Window(64, 0.75)).deeper
    assert on == pytest.approx((0.00125, 0.005))
    assert off == pytest.approx((0.005, 0.02))


def test_many_texts_are_weighed_at_one_depth():
    """Each reads its prompt, in decodes of fewer rows than a tile where that is less, and answers."""
    once, more = Times(192, 0.5, 1.0), Times(192, 1.0, 2.0)
    use = Use(4096, 1, n_seq=4)
    assert weigh(AttentionTimes((once,), (more,), 0.25), use, None)[:3] == (640.0, 1280.0, 448.0)
    assert weigh(AttentionTimes((once,), (more,)), use, None).below == math.inf


def test_a_context_of_the_training_length_is_as_deep(tiny_target, measured):
    """0 tokens of context are llama.cpp's word for it."""
    attention_of(tiny_target, USE._replace(n_ctx=0))
    assert measured[1][0][1].n_ctx == 4096


@pytest.mark.parametrize(
    ("arch", "keys", "window"),
    [
        ("gemma3", {"sliding_window": 512}, Window(512, pytest.approx(5 / 6))),
        ("gemma3", {}, None),
        ("gemma3", {"sliding_window": 0}, None),
        (
            "gemma4",
            {"sliding_window": 512, "sliding_window_pattern": [True, True, False, True]},
            Window(512, 0.75),
        ),
        ("gpt-oss", {"sliding_window": 128, "sliding_window_pattern": 4}, Window(128, 0.75)),
        ("phi3", {"sliding_window": 2047}, None),
        ("llama", {"sliding_window": 4096}, None),
    ],
)
def test_windows_are_the_headers(tmp_path, arch, keys, window):
    """By a flag for each layer, by a period, or by the architecture's own; others ignore the size."""
    path = tmp_path / "windows.gguf"
    kv = {"general.architecture": (STR, arch)}
    for key, value in keys.items():
        kind = (ARR, (BOOL, value)) if isinstance(value, list) else (U32, value)
        kv[f"{arch}.attention.{key}"] = kind
    path.write_bytes(Gguf(kv).build())
    assert attention._window(parse_header(path)) == window


def test_scores_that_memory_does_not_hold_decide(tiny_target, measured, monkeypatch):
    """Without flash attention, the scores of a micro-batch lie in memory."""
    monkeypatch.setattr(attention, "machine_memory", lambda: 1 << 20)
    assert attention_of(tiny_target, Use(16, 1)).flash is False
    assert attention_of(tiny_target, USE._replace(n_ctx=1 << 20)).flash is True


def test_what_is_asked_for_is_what_there_is(tiny_target, measured):
    many, (on,), (off,) = USE._replace(n_seq=4), TIMED.on[:1], TIMED.off[:1]
    measured[0][:] = [AttentionTimes((on,), (off,), on.read / 2)]
    assert attention_of(tiny_target, many, flash=True) == Attention(True, below_tile=True)
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
    monkeypatch.setattr(
        attention, "_usable_ms", lambda _path, use, _: pool if use.unified else streams
    )
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
    assert (contexts.answering_rows < TILE) is below_tile
    contexts.close()
    models.close()
