"""The trial load: good files pass once, bad ones die in the child and never here."""

import os
import signal
import struct
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.make_gguf import ARR, STR, split, tiny_llama

from pyspec.errors import ModelInvalid, ModelRejected
from pyspec.gguf import check as module
from pyspec.gguf.check import Loading, check_fitting, check_model
from pyspec.gguf.reader import parse_header
from pyspec.machine.child import ChildExit


def written(folder, made):
    return made.write(folder / "m.gguf")


def forbid_children(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a child was started")

    monkeypatch.setattr(module, "run_child", refuse)


def test_every_part_of_a_split_file_counts(tmp_path, monkeypatch):
    first, second, _ = split(tmp_path)
    check_model(first)
    with monkeypatch.context() as patch:
        forbid_children(patch)
        check_model(first)
    os.utime(second, ns=(1, 1))
    forbid_children(monkeypatch)
    with pytest.raises(AssertionError, match="a child was started"):
        check_model(first)


def test_trust_reads_the_header_only(tiny, monkeypatch):
    forbid_children(monkeypatch)
    check_model(tiny, trust=True)
    tiny.write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(ModelInvalid):
        check_model(tiny, trust=True)


def test_a_vocabulary_without_weights_is_tried_as_one(tmp_path):
    """Files such as llama.cpp's own vocabularies hold no tensors: fine where only the vocabulary is wanted."""
    made = tiny_llama()
    made.tensors = []
    path = written(tmp_path, made)
    check_model(path, loading=Loading(vocab_only=True))
    with pytest.raises(ModelInvalid, match="no tensors"):
        check_model(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_rejected(value, tmp_path):
    """One bad weight is enough: llama.cpp's tensor check finds it, and its message is passed on."""
    made = tiny_llama()
    weight = made.tensor("blk.0.ffn_up.weight")
    weight.data = struct.pack("<f", value) + weight.data[4:]
    path = written(tmp_path, made)
    for _ in range(2):  # a rejection is not remembered
        with pytest.raises(ModelRejected, match=r"cannot load it.*blk\.0\.ffn_up") as caught:
            check_model(path)
        assert caught.value.signal is None


def test_abort_of_llama_cpp_stays_in_the_child(tmp_path, monkeypatch):
    made = tiny_llama()
    _, (_, words) = made.kv["tokenizer.ggml.tokens"]
    made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, [*words[:-1], "a"]))
    path = written(tmp_path, made)
    monkeypatch.setattr(module, "read_header", lambda p, **_: parse_header(Path(p)))
    with pytest.raises(ModelRejected, match="SIGABRT") as caught:
        check_model(path)
    assert caught.value.signal == signal.SIGABRT


@pytest.mark.parametrize("beyond", ["H", "~", r"\xe4\xbd", r"\n", "\xa9"])
def test_tokenizer_without_end_is_ended(beyond, tmp_path, monkeypatch):
    """llama.cpp's RWKV tokenizer never ends at a byte that begins tokens and is none: the clock or a limit of memory ends it.

    Newlines are tokenized while the file is loaded, which only the limit of the whole trial ends.
    """
    monkeypatch.setattr(module, "_BASE_SECONDS", module._BASE_SECONDS / 10)
    made = tiny_llama()
    n = len(made.kv["tokenizer.ggml.tokens"][1][1])
    words = ["A", *(f"A{i}" for i in range(n - 2))]
    made.kv["tokenizer.ggml.model"] = (STR, "rwkv")
    path = tmp_path / "m.gguf"
    for last in (f"{beyond}~", "Az"):
        made.kv["tokenizer.ggml.tokens"] = (ARR, (STR, [*words, last]))
        made.write(path)
        ended = pytest.raises(ModelRejected, match=r"did not finish|emory|alloc")
        with ended if last != "Az" else nullcontext():
            check_model(path)


def full_card(monkeypatch, *, works_without=True):
    """Has each trial on a device end as on one without memory; the layers of each trial."""
    tried: list[int] = []

    def run(_header, loading, _extra):
        tried.append(loading.n_gpu_layers)
        fine = works_without and not loading.n_gpu_layers
        return ChildExit(
            "" if fine else "llama.cpp cannot load it: cudaMalloc failed: out of memory"
        )

    monkeypatch.setattr(module, "_run", run)
    return tried


def test_a_good_file_stays_with_the_processor(tiny, monkeypatch, caplog):
    """Where nobody asked for layers on a device that has no memory left, which is said."""
    tried = full_card(monkeypatch)
    assert check_fitting(tiny, False, Loading(n_gpu_layers=3))[1] is False
    assert tried == [3, 0]
    assert "stay on the CPU" in caplog.text
    assert "out of memory" in caplog.text


def test_a_bad_file_is_refused_on_both(tiny, monkeypatch):
    """What fails on the processor, too, is no fault of the device; on it alone there is nothing to fall back to."""
    full_card(monkeypatch, works_without=False)
    for layers in (3, 0):
        with pytest.raises(ModelRejected, match="out of memory"):
            check_fitting(tiny, False, Loading(n_gpu_layers=layers))
