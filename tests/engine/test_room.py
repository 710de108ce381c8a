"""What models and their KV caches take."""

from pathlib import Path

import llama_cpp
import pytest
from helpers import tiny

from pyspec.batch import Batch
from pyspec.engine.models import SideOptions
from pyspec.engine.room import cell_bytes, expected_bytes, longest_context, room_of_models
from pyspec.machine.files import size_of

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
    monkeypatch.setattr("pyspec.engine.room.machine_memory", lambda: 1000)
    assert room_of_models(0, ()) == 750
    monkeypatch.setattr("pyspec.engine.room.machine_memory", lambda: 0)
    assert room_of_models(0, ()) == float("inf")


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
    monkeypatch.setattr("pyspec.engine.room.machine_memory", lambda: int(memory))
    assert longest_context(path, [], 0, (), n_seq) == held
    said = f"context to {held} tokens; the model was trained for {TRAINED}"
    assert (said in caplog.text) == (held < TRAINED)
    assert longest_context(path, [path], 0, (), n_seq) <= held
    monkeypatch.setattr("pyspec.engine.room.machine_memory", lambda: 0)  # it is not known
    assert longest_context(path, [], 0, (), 64) == TRAINED
