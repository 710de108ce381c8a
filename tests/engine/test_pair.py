"""What a run adds to a model is tried in a child before it is loaded: heads, adapters, overrides, types of the KV cache."""

import os
import signal
import subprocess
import sys

import pytest
from faults.cases import load
from helpers import tiny, tiny_eagle
from helpers.make_gguf import ARR, BOOL, F32, STR, U32, adapter, read, says, tiny_llama
from helpers.sources import ROOT
from helpers.systems import alive
from helpers.waiting import DEADLINE_S, wait

from pyspec.engine import models
from pyspec.errors import ModelError, ModelInvalid, ModelRejected, OptionError
from pyspec.gguf import check

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def target(tmp_path):
    return tiny.write(tmp_path / "target.gguf", n_layer=tiny_eagle.N_LAYER)


@pytest.fixture
def model(tmp_path):
    return tiny_llama().write(tmp_path / "model.gguf")


def changed(sound, change):
    made = read(sound)
    change(made)
    return made.write(sound.with_name("changed.gguf"))


def few_tokens(made):
    """What the trial did not reach would end the process in the first answer of other ones."""
    made.kv["eagle3.attention.layer_norm_rms_epsilon"] = (F32, float("-inf"))
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, tiny.TOKENS[:14]))


def flat_embeddings(made):
    tensor = made.tensor("token_embd.weight")
    tensor.shape = (tensor.shape[0] * tensor.shape[1],)


@pytest.mark.parametrize(("change", "error", "words"), [
    (says("eagle3.rope.dimension_count", U32, 0), ModelRejected, "trial with"),  # never ends
    (says("eagle3.attention.layer_norm_rms_epsilon", F32, float("nan")), ModelRejected, "trial with"),
    (says("eagle3.expert_count", U32, 3), ModelRejected, "trial with"),
    (few_tokens, ModelRejected, "trial with"),
    # by its header: its states would be read beyond their end
    (says("eagle3.embedding_length_out", U32, 7), ModelInvalid, "another width"),
    # as above: whether llama.cpp survives it depends on how much it reads at once
    (says("eagle3.attention.causal", BOOL, False), ModelInvalid, "still to come"),
    (says("eagle3.target_layers", ARR, (STR, ["1", "2", "x"])), ModelInvalid, None),
    (says("eagle3.target_layers", ARR, (F32, [1.0, 2.0, float("nan")])), ModelInvalid, None),
    (flat_embeddings, ModelInvalid, None),
])  # fmt: skip
def test_a_head_is_tried_with_its_target(change, error, words, tmp_path, target, monkeypatch):
    """What llama.cpp ends the process for, or never ends with, is one of the package's own exceptions."""
    monkeypatch.setattr(models, "_SECONDS", 0.6)  # of processor time
    ids = [3, 5, 7] if change is few_tokens else None
    head = changed(tiny_eagle.write(tmp_path / "sound.gguf", d2t=ids), change)
    with pytest.raises(error, match=words):
        load(target, draft=str(head), n_ctx=128)


def test_a_pair_is_tried_once(tmp_path, target, monkeypatch):
    draft, tried = tiny_eagle.write(tmp_path / "head.gguf"), []

    def spy(*arguments, **options):
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
def test_the_targets_own_head_is_tried(key, tmp_path):
    sound = tiny.write(tmp_path / "sound.gguf", arch="qwen35", n_heads=1)
    path = changed(sound, says(f"qwen35.{key}", F32, float("nan")))
    with pytest.raises(ModelError):
        load(path, draft="mtp", n_ctx=128)


BAD_ADAPTERS = {
    "missing": lambda _path: None,
    "no file": os.mkfifo,
    "a model": lambda path: tiny_llama().write(path),
    "fewer columns": lambda path: adapter(b=(4, 31)).write(path),
    "flat": lambda path: adapter(b=(32,)).write(path),
    "another rank": lambda path: adapter(b=(5, 32)).write(path),
    "another width": lambda path: adapter(a=(7, 4), b=(4, 7)).write(path),
}


def test_an_adapter_is_put_on(model, tmp_path):
    adapter().write(tmp_path / "lora.gguf")
    load(model, lora_path=str(tmp_path / "lora.gguf")).close()


@pytest.mark.parametrize("kind", BAD_ADAPTERS)
def test_an_adapter_that_cannot_be_used_is_refused(kind, model, tmp_path):
    """llama_cpp would go on with a null pointer, or end in the decode."""
    BAD_ADAPTERS[kind](tmp_path / "lora.gguf")
    with pytest.raises(ModelError, match="lora"):
        load(model, lora_path=str(tmp_path / "lora.gguf"))


@pytest.mark.parametrize(("key", "value"), [
    ("llama.attention.layer_norm_rms_epsilon", float("nan")),
    ("llama.block_count", 0),
    ("llama.attention.head_count", 0),
])  # fmt: skip
def test_overrides_are_tried(key, value, model):
    with pytest.raises(ModelError):
        load(model, kv_overrides={key: value})


@pytest.mark.parametrize("override", [{"k" * 200: 1}, {"a": "b" * 128}, {"a": 2**70}, {"a": None}])
def test_overrides_that_llama_cpp_cannot_hold(override, model):
    with pytest.raises(OptionError):
        load(model, kv_overrides=override)


@pytest.mark.parametrize("name", ["type_k", "type_v", "draft_type_k", "draft_type_v"])
def test_types_of_the_cache(name, model):
    for number in (99, -1, 14):
        with pytest.raises(OptionError, match=name):
            load(model, **{name: number})
    load(model, **{name: 1}).close()
    if not name.startswith("draft"):
        with pytest.raises(ModelError):
            load(model, **{name: 8})  # heads of 16 entries, blocks of 32


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


def test_a_child_ends_with_its_parent(tmp_path):
    script, pid = tmp_path / "loops.py", tmp_path / "pid"
    script.write_text(f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n{LOOPS}")
    words, env = [sys.executable, "-c", LOADS, str(script)], {**os.environ, "PYTHONPATH": str(ROOT)}
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        pid.unlink(missing_ok=True)
        with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=env) as parent:
            wait(lambda: pid.exists() and pid.read_text())
            parent.send_signal(number)
            parent.wait(DEADLINE_S)
        wait(lambda: not alive(int(pid.read_text())))
