"""Where several types are known of a model, decodes are timed on the device that its layers will go to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from offload.test_fit import found_by

Run = Callable[..., str]

_TIME = """
from pathlib import Path
from pyspec.store.fastest import _times, _where, place_of
path, layers = Path(sys.argv[2]), json.loads(sys.argv[3])
one, name = device(1 << 32)
place = place_of(layers, (name,))
times = _times(path, place)
where = _where(path, place)
llm = TargetLlama(str(path), n_gpu_layers=layers, devices=[name], n_ctx=512, trust=True, verbose=False)
from pyspec.engine.profiles import _run
from pyspec.store.timed import how
end([sorted(times), min(times.values()) > 0, one.most_used, one.refused, how(llm.n_threads, where) == _run(llm)])
"""


@pytest.mark.parametrize("layers", ["-1", '"auto"', "4"])
def test_decodes_are_timed_on_the_device(in_child: Run, eight_layers: Path, layers: str) -> None:
    """The child has the parent's servers; what it took is kept under the words that the loaded model looks for."""
    widths, positive, used, refused, same_words = found_by(in_child, _TIME, eight_layers, layers)
    assert widths == [1, 4, 8, 64]
    assert positive
    assert used > 0
    assert not refused
    assert same_words
