"""What a run adds to a model is tried in a child before it is loaded: heads, adapters, overrides, types of the KV cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.cases import load
from helpers import tiny, tiny_eagle
from helpers.make_gguf import ARR, BOOL, F32, STR, U32, Gguf, Tensor, floats, read, tiny_llama
from helpers.sources import ROOT
from helpers.systems import alive
from helpers.waiting import DEADLINE_S, wait

from pyspec.engine import models
from pyspec.errors import ModelError, ModelInvalid, ModelRejected, OptionError
from pyspec.gguf import check

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "target.gguf", n_layer=tiny_eagle.N_LAYER)


def head(folder: Path, key: str, kind: int, value: Any) -> Path:
    """An EAGLE-3 file that says one thing more."""
    made = read(tiny_eagle.write(folder / "sound.gguf"))
    made.kv[f"eagle3.{key}"] = (kind, value)
    path = folder / "head.gguf"
    path.write_bytes(made.build())
    return path


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("rope.dimension_count", U32, 0),  # never ends
        ("attention.layer_norm_rms_epsilon", F32, float("nan")),
        ("expert_count", U32, 3),
    ],
)
def test_a_head_is_tried_with_its_target(
    key: str, kind: int, value: Any, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What llama.cpp ends the process for, or never ends with, is a rejection."""
    monkeypatch.setattr(models, "_SECONDS", 0.6)  # of processor time
    with pytest.raises(ModelRejected, match="trial with"):
        load(target, draft=str(head(tmp_path, key, kind, value)), n_ctx=128)


def test_a_head_of_another_width_is_refused(tmp_path: Path, target: Path) -> None:
    """By its header: its states would be read beyond their end."""
    with pytest.raises(ModelInvalid, match="another width"):
        load(target, draft=str(head(tmp_path, "embedding_length_out", U32, 7)), n_ctx=128)


def test_a_head_that_looks_ahead_is_refused(tmp_path: Path, target: Path) -> None:
    """By its header: whether llama.cpp survives it depends on how much it reads at once."""
    with pytest.raises(ModelInvalid, match="still to come"):
        load(target, draft=str(head(tmp_path, "attention.causal", BOOL, False)), n_ctx=128)


def test_a_head_that_drafts_nothing_is_rejected(tmp_path: Path, target: Path) -> None:
    """It knows too few tokens: what the trial did not reach would end the process in the first answer of other ones."""
    made = read(tiny_eagle.write(tmp_path / "sound.gguf", d2t=[3, 5, 7]))
    made.kv["eagle3.attention.layer_norm_rms_epsilon"] = (F32, float("-inf"))
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, tiny.TOKENS[:14]))
    path = tmp_path / "head.gguf"
    path.write_bytes(made.build())
    with pytest.raises(ModelRejected, match="trial with"):
        load(target, draft=str(path), n_ctx=128)


def _layers_of_words(made: Gguf) -> None:
    made.kv["eagle3.target_layers"] = (ARR, (STR, ["1", "2", "x"]))


def _layers_of_fractions(made: Gguf) -> None:
    made.kv["eagle3.target_layers"] = (ARR, (F32, [1.0, 2.0, float("nan")]))


def _flat_embeddings(made: Gguf) -> None:
    tensor = made.tensor("token_embd.weight")
    tensor.shape = (tensor.shape[0] * tensor.shape[1],)


@pytest.mark.parametrize("change", [_layers_of_words, _layers_of_fractions, _flat_embeddings])
def test_a_head_whose_parts_have_other_types_is_refused(
    change: Callable[[Gguf], None], tmp_path: Path, target: Path
) -> None:
    """By one of the package's own exceptions."""
    made = read(tiny_eagle.write(tmp_path / "sound.gguf"))
    change(made)
    path = tmp_path / "head.gguf"
    path.write_bytes(made.build())
    with pytest.raises(ModelInvalid):
        load(target, draft=str(path), n_ctx=128)


def test_a_pair_is_tried_once(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, tried = tiny_eagle.write(tmp_path / "head.gguf"), []

    def spy(*arguments: Any, **options: Any) -> check.ChildExit:
        tried.append(arguments[1][1])
        return check.run_child(*arguments, **options)

    monkeypatch.setattr(models, "run_child", spy)
    for _ in range(2):
        load(target, draft=str(draft), n_ctx=128).close()
    load(target, draft=str(draft), n_ctx=128, trust=True).close()
    assert len(tried) == 1
    os.utime(target, ns=(1, 1))
    load(target, draft=str(draft), n_ctx=128).close()
    assert len(tried) == 2


@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base"])
def test_the_targets_own_head_is_tried(key: str, tmp_path: Path) -> None:
    """One that llama.cpp cannot compute is refused, asked for or not."""
    made = read(tiny.write(tmp_path / "sound.gguf", arch="qwen35", n_heads=1))
    made.kv[f"qwen35.{key}"] = (F32, float("nan"))
    path = tmp_path / "mtp.gguf"
    path.write_bytes(made.build())
    with pytest.raises(ModelError):
        load(path, draft="mtp", n_ctx=128)


def adapter(folder: Path, name: str, shape_b: tuple[int, ...]) -> Path:
    """A LoRA file for the tiny llama."""
    made = Gguf({"general.type": (STR, "adapter"), "adapter.type": (STR, "lora")})
    made.kv |= {"general.architecture": (STR, "llama"), "adapter.lora.alpha": (F32, 1.0)}
    for end, shape in {"a": (32, 4), "b": shape_b}.items():
        tensor = f"{name}.lora_{end}"
        made.tensors.append(Tensor(tensor, shape, floats(shape, 1)))
    path = folder / "lora.gguf"
    path.write_bytes(made.build())
    return path


@pytest.mark.parametrize("shape", [(4, 32), (4, 31), (32,), (5, 32)])
def test_an_adapter_is_tried(shape: tuple[int, ...], tmp_path: Path) -> None:
    """With its model: it is put on, or refused."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama().build())
    lora = adapter(tmp_path, "blk.0.attn_q.weight", shape)
    if shape == (4, 32):
        load(path, lora_path=str(lora)).close()
        return
    with pytest.raises(ModelError):
        load(path, lora_path=str(lora))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.block_count", 0),
        ("llama.attention.head_count", 0),
    ],
)
def test_overrides_are_tried(key: str, value: Any, tmp_path: Path) -> None:
    """A value that ends llama.cpp is a rejection, as it would be in the file."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama().build())
    with pytest.raises(ModelError):
        load(path, kv_overrides={key: value})


@pytest.mark.parametrize("override", [{"k" * 200: 1}, {"a": "b" * 128}, {"a": 2**70}, {"a": None}])
def test_overrides_that_llama_cpp_cannot_hold(override: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama().build())
    with pytest.raises(OptionError):
        load(path, kv_overrides=override)


@pytest.mark.parametrize("name", ["type_k", "type_v", "draft_type_k", "draft_type_v"])
def test_types_of_the_cache(name: str, tmp_path: Path) -> None:
    """One that no KV cache can have is an option outside its range; the others are tried."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama().build())
    for number in (99, -1, 14):
        with pytest.raises(OptionError, match=name):
            load(path, **{name: number})
    load(path, **{name: 1}).close()
    if not name.startswith("draft"):
        with pytest.raises(ModelError):
            load(path, **{name: 8})  # heads of 16 entries, blocks of 32


LOOPS = "import time\nwhile True: time.sleep(1)"

LOADS = """
import signal
import sys
from collections.abc import Callable
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
from pyspec.gguf import check
check.run_child("x", [], script=Path(sys.argv[1]))
"""


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    script, pid = tmp_path / "loops.py", tmp_path / "pid"
    script.write_text(f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n{LOOPS}")
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM), signal.SIGINT):
        pid.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", LOADS, str(script)],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as parent:
            wait(lambda: pid.exists() and pid.read_text())
            parent.send_signal(number)
            parent.wait(DEADLINE_S)
        wait(lambda: not alive(int(pid.read_text())))
