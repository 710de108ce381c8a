"""Whether flash attention pays is measured for a shape of heads, kept for this machine, and followed by class and batch."""

import llama_cpp
import pytest

from pyspec.engine.contexts import Contexts, Layout, Models
from pyspec.gguf.header import shape_of
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine import attention
from pyspec.machine.attention import DEEPEST, Heads, Times, Window, flash_pays, weigh

HEADS = Heads(4, 2, 8, 8)
ON, OFF = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)


@pytest.fixture
def measured(monkeypatch):
    found, asked = [Times((1.0, 1.0), (1.0, 0.5))], []

    def measure(*what):
        asked.append(what)
        return found[0] and dict.fromkeys(what[1], found[0])

    monkeypatch.setattr(attention, "_measure", measure)
    monkeypatch.setattr(attention.Watch, "busy", lambda *_: False)
    return found, asked


@pytest.mark.parametrize("depths", [[1], [64], [64, 600]])
def test_a_toy_is_timed(depths):
    times = attention._measure(HEADS, depths, 1)
    assert list(times) == depths
    assert all(ms > 0.0 for each in times.values() for pair in each for ms in pair)


def test_a_row_is_timed_behind_as_many_cells(monkeypatch):
    seen, timed, chunk = set(), attention.Decodes.ms, attention._CHUNK

    def noted(decodes, n):
        memory = llama_cpp.llama_get_memory(decodes._context)
        seen.add((n, llama_cpp.llama_memory_seq_pos_max(memory, 0) + 1))
        return timed(decodes, n)

    monkeypatch.setattr(attention.Decodes, "ms", noted)
    attention._measure(HEADS, [64, 600], 1)
    assert seen == {(64, 0), (1, 64), (chunk, 600 - chunk), (1, 600)}


@pytest.mark.parametrize(("heads", "room"), [(Heads(3, 2, 7, 8), 1 << 40), (HEADS, 1 << 20)])
def test_what_cannot_be_made_is_not_timed(heads, room, monkeypatch):
    """llama.cpp makes no model of impossible heads, and ggml ends the process if an allocation fails."""
    monkeypatch.setattr(attention, "address_space_left", lambda: room)
    assert attention._measure(heads, [8], 1) is None


@pytest.mark.parametrize(("depth", "chunk", "row", "on"), [
    (4000, (30.0, 37.0), (2.0, 0.5), False),  # rows through all cells alone, as AMX has it
    (1000, (15.0, 25.0), (0.2, 0.18), True),  # a slow product without it, as on AVX2
    (64, (1.0, 2.0), (0.1, 0.1), True),
    (64, (1.0, 1.0), (0.1, 0.1), True),  # llama.cpp's own choice between equals
])  # fmt: skip
def test_reading_and_answering_are_weighed(depth, chunk, row, on):
    flash, without = weigh({depth: Times(chunk, row)}, Window(), swa_full=True)
    assert (flash <= without) is on


def test_a_prompt_as_deep_as_the_context_is_read():
    """In chunks that on average see half of it, and an answer of 128 tokens sees all."""
    times = {1024: Times((8.0, 4.0), (0.25, 0.5))}
    assert weigh(times, Window(), swa_full=True) == (4 * 8 / 2 + 32, 4 * 4 / 2 + 64)


def test_a_window_spares_flash_attention_what_it_hides():
    """Without it, rows look at all cells that are kept."""
    times = {512: Times((1.0, 1.0), (1.0, 1.0)), 4096: Times((8.0, 8.0), (8.0, 8.0))}
    all_ = weigh(times, Window(), swa_full=True)
    assert all_[0] == all_[1]
    on, off = weigh(times, Window(512, 0.75), swa_full=True)
    assert (on < all_[0], off) == (True, all_[1])
    on, off = weigh(times, Window(512, 0.75), swa_full=False)
    assert on == off < all_[0]


def test_a_busy_machine_is_asked_again(tiny_target, measured, monkeypatch):
    """What was found beside other programs serves until the machine is quiet."""
    monkeypatch.setattr(attention.Watch, "busy", lambda *_: True)
    monkeypatch.setattr(attention, "is_quiet", lambda: False)
    assert [flash_pays(shape_of(tiny_target), 512, 1) for _ in range(2)] == [False] * 2
    measured[0][0] = Times((1.0, 1.0), (0.5, 1.0))
    monkeypatch.setattr(attention, "is_quiet", lambda: True)
    assert flash_pays(shape_of(tiny_target), 512, 1)
    assert len(measured[1]) == 2


@pytest.mark.parametrize("what", ["nothing", "depth", "threads", "processor", "windows"])
def test_it_is_measured_once_for_what_may_change_it(tiny_target, measured, monkeypatch, what):
    shape = shape_of(tiny_target)
    assert flash_pays(shape, 512, 1) is False
    if what == "processor":
        other = attention.this_machine()._replace(realpath="another")
        monkeypatch.setattr(attention, "this_machine", lambda: other)
    n_ctx, threads = 500 if what == "depth" else 512, 2 if what == "threads" else 1
    assert flash_pays(shape, n_ctx, threads, swa_full=what != "windows") is False
    assert len(measured[1]) == (1 if what == "nothing" else 2)


@pytest.mark.parametrize(("n_ctx", "window", "depths"), [
    (0, Window(), [4096]), (100, Window(), [100]), (1 << 14, Window(), [DEEPEST]),
    (256, Window(64, 0.75), [64, 256]), (32, Window(64, 0.75), [32]),
])  # fmt: skip
def test_it_is_timed_behind_the_context_and_the_window(
    tiny_target, measured, n_ctx, window, depths
):
    """0 tokens of context are llama.cpp's word for those of training; very deep ones are not read."""
    flash_pays(shape_of(tiny_target)._replace(window=window), n_ctx, 1)
    assert measured[1][0][1] == depths


def test_what_cannot_be_timed_has_flash_attention(tiny_target, measured):
    measured[0][0] = None
    assert [flash_pays(shape_of(tiny_target), 512, 1) for _ in range(2)] == [True] * 2
    assert len(measured[1]) == 2


def test_scores_that_memory_does_not_hold_decide(tiny_target, measured, monkeypatch):
    monkeypatch.setattr(attention, "machine_memory", lambda: 1 << 20)
    assert flash_pays(shape_of(tiny_target), 16, 1, n_ubatch=16) is False
    assert flash_pays(shape_of(tiny_target), 1 << 20, 1) is True


@pytest.fixture
def found(monkeypatch):
    def set_(flash):
        for module in ("pyspec.engine.target", "pyspec.engine.contexts"):
            monkeypatch.setattr(f"{module}.flash_pays", lambda *_given, **_more: flash)

    return set_


@pytest.mark.parametrize(("options", "flash", "kind"), [
    ({}, False, OFF),
    ({}, True, ON),
    ({"flash_attn": True}, False, ON),
    ({"flash_attn": False}, True, OFF),
])  # fmt: skip
def test_the_class_follows_it(tiny_target, found, options, flash, kind):
    found(flash)
    with SpeculativeLlama(str(tiny_target), draft="none", n_threads=1, **options) as llm:
        assert llm.context_params.flash_attn_type == kind
        assert llm.create_completion("ab", max_tokens=3)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(("flash", "n_slots", "layout", "options", "kind"), [
    (False, 1, Layout(64), {}, OFF), (False, 4, Layout(256, 64), {}, OFF), (False, 2, Layout(128), {}, OFF),
    (False, 4, Layout(256), {}, ON),  # each row would look at all cells of a pool that many share
    (False, 1, Layout(64), {"flash_attn": True}, ON), (True, 1, Layout(64), {"flash_attn": False}, OFF),
])  # fmt: skip
def test_contexts_follow_it(tiny_target, found, flash, n_slots, layout, options, kind):
    found(flash)
    models = Models(str(tiny_target), "none", "none", n_threads=1, **options)
    contexts = Contexts(models, n_slots, 64, layout)
    assert models.target.context_params.flash_attn_type == kind
    contexts.close()
    models.close()
