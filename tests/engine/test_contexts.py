"""Where cells lie: enough for every record, never far more than a pool would take; and what models and their caches take."""

from pathlib import Path

import llama_cpp
import pytest
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st

from pyspec.batch import Batch
from pyspec.engine.contexts import (
    WASTE,
    Layout,
    best_parallel,
    cell_bytes,
    expected_bytes,
    lay_out,
    longest_context,
    room_of_models,
)
from pyspec.engine.kept import common
from pyspec.engine.models import SideOptions
from pyspec.machine.files import size_of

NEEDS = st.lists(st.integers(1, 8192), min_size=1, max_size=64)


@given(st.integers(1, 64), st.integers(1, 8192), NEEDS, st.booleans())
def test_every_record_fits(n_slots, n_ctx, needs, streams):
    """A stream holds the longest record; a pool holds the longest ones together, and any one that the context allows."""
    needs = sorted((min(need, n_ctx) for need in needs), reverse=True)
    layout = lay_out(n_slots, n_ctx, needs, streams=streams)
    pool = lay_out(n_slots, n_ctx, needs, streams=False)
    assert pool.each == 0
    assert pool.cells >= max(n_ctx, sum(needs[:n_slots]))
    if layout.each:
        assert streams
        assert layout.each >= needs[0]
        assert layout.cells == layout.each * n_slots <= 1.2 * WASTE * pool.cells
    else:
        assert layout == pool


def test_records_of_one_length_get_streams():
    """And one long record among short ones gets a pool."""
    assert lay_out(16, 2048, [200] * 16, streams=True) == Layout(16 * 256, 256)
    assert lay_out(16, 2048, [2000] + [200] * 15, streams=True).each == 0


def test_best_parallel_looks_beyond_a_flat_step():
    """Two rows at the price of two, eight at the price of four: as Q8_0 does on a CPU."""
    times = [0, 1, 2.02, 2.46, 2.68, 3.28, 3.6, 3.7, 3.88, *[5.41] * 7, 6.53]
    assert best_parallel(times) == 16
    assert best_parallel(times[:9]) == 8


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_common_beginning(a, b):
    """Against the slow way; the last token of the second text never counts."""
    slow = 0
    while slow < min(len(a), len(b) - 1) and a[slow] == b[slow]:
        slow += 1
    assert common(a, b) == slow


# -- memory ------------------------------------------------------------------------------------------------------------

F32 = 0


@pytest.mark.parametrize("kinds", [{}, {"type_k": F32, "type_v": F32}])
@pytest.mark.parametrize("sides", [False, True])
def test_what_is_expected_is_what_is_held(tmp_path, tiny_target, kinds, sides):
    """But for the headers of the files: those of KV cells to the byte, a draft's among them."""
    draft = tiny.write(tmp_path / "draft.gguf", seed=7) if sides else None
    options = {"flash_attn": False, "n_ctx": 512, "parallel": 3, "n_threads": 1, **kinds}
    with Batch(str(tiny_target), draft=str(draft or "none"), interactive=True, **options) as batch:
        batch.prepare()
        held, weights = batch.nbytes, int(llama_cpp.llama_model_size(batch.target.model))
    files = [Path(tiny_target), *filter(None, [draft])]
    expected = expected_bytes(files[0], files[1:], 3 * 512, SideOptions(**kinds))
    assert expected - held == size_of(files[0]) - weights


def test_models_may_take_most_of_what_there_is(monkeypatch):
    monkeypatch.setattr("pyspec.engine.contexts.machine_memory", lambda: 1000)
    assert room_of_models(0, ()) == 750


TRAINED = 4096
"""Tokens of context that tiny models say they were trained for."""


CONTEXTS = [(TRAINED, 1, TRAINED), (3 * TRAINED, 4, 3 * 1024), (1000, 1, 768), (0, 1, 256)]


@pytest.mark.parametrize(("cells", "n_seq", "held"), CONTEXTS)
def test_the_longest_context_is_what_memory_holds(
    tiny_target, monkeypatch, caplog, cells, n_seq, held
):
    """In the quarter that KV cells may take, for each of so many sequences; never more than was trained, and less is said."""
    path = Path(tiny_target)
    memory = 4 * cells * cell_bytes(path, SideOptions()) + 1
    monkeypatch.setattr("pyspec.engine.contexts.machine_memory", lambda: int(memory))
    assert longest_context(path, [], 0, (), n_seq) == held
    said = f"context to {held} tokens; the model was trained for {TRAINED}"
    assert (said in caplog.text) == (held < TRAINED)
    assert longest_context(path, [path], 0, (), n_seq) <= held
