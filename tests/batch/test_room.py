"""What models and their KV caches take."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import pytest
import tiny

from pyspec.batch import Batch
from pyspec.batch.room import expected_bytes, room_of_models
from pyspec.engine.models import Placement
from pyspec.store.files import size_of

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
    expected = expected_bytes(files[0], files[1:], 3 * 512, Placement(**kinds))
    assert expected - held == size_of(files[0]) - weights


def test_models_may_take_most_of_what_there_is(monkeypatch):
    """Of this machine's memory where layers stay on the processor; all there is where it is not known."""
    monkeypatch.setattr("pyspec.batch.room.machine_memory", lambda: 1000)
    assert room_of_models(0, ()) == 750
    monkeypatch.setattr("pyspec.batch.room.machine_memory", lambda: 0)
    assert room_of_models(0, ()) == float("inf")
