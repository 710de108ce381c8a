"""Models that are no decoders, and those that know so many positions and no more: a sentence, never the process' end."""

import pytest
from faults.cases import load
from helpers import tiny_positions
from helpers.make_gguf import BOOL, STR, tiny_llama

from pyspec.batch.maker import Settings
from pyspec.batch.run import Batch
from pyspec.errors import ContextOverflow, UnsupportedModel
from pyspec.gguf.kinds import _PURPOSE

pytestmark = pytest.mark.usefixtures("own_cache")


def gpt2(folder, positions):
    return tiny_positions.gpt2(positions).write(folder / f"gpt2-{positions}.gguf")


@pytest.mark.parametrize("positions", [20, 100, 256])
@pytest.mark.parametrize("draft", ["none", "lookup", "itself"])
def test_an_answer_ends_with_the_positions(positions, draft, tmp_path):
    path = gpt2(tmp_path, positions)
    words = {"itself": str(path)}
    with load(path, n_ctx=4096, draft=words.get(draft, draft), length="fixed:4") as llm:
        assert llm.n_ctx() == positions
        answer = llm.create_completion("abcabc", max_tokens=None, temperature=0)
        assert answer["usage"]["total_tokens"] >= positions - 1
        with pytest.raises(ContextOverflow):
            llm.eval([5] * 300)


def test_a_batch_ends_with_the_positions(tmp_path):
    path = str(gpt2(tmp_path, 100))
    batch = Batch(path, parallel=2, n_threads=1, settings=Settings(max_tokens=4000))
    results = list(batch.run(["abc", "abd", "x" * 200]))
    batch.close()
    assert [result.finish_reason for result in sorted(results, key=lambda result: result.index)] == [
        "context", "context", None,
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["draft", "companion"])
def test_side_models_know_as_many_positions(role, tmp_path, tiny_target):
    short, long = gpt2(tmp_path, 300), gpt2(tmp_path, 512)
    options = {"draft": str(long), "companion": "none"} | {role: str(short)}
    with pytest.raises(UnsupportedModel, match="-c 256"):
        load(long, n_ctx=512, **options)
    with load(long, n_ctx=256, **options, length="fixed:2") as llm:
        llm.n_ctx()


@pytest.mark.parametrize("arch", sorted(_PURPOSE))
def test_other_kinds_are_refused_by_name(arch, tmp_path):
    """Encoders, embedders, diffusion models: before anything is loaded, as a target and beside one."""
    made = tiny_llama()
    good = made.write(tmp_path / "good.gguf")
    made.kv["general.architecture"] = (STR, arch)
    path = made.write(tmp_path / "other.gguf")
    with pytest.raises(UnsupportedModel, match=f"a {arch} model"):
        load(path)
    with pytest.raises(UnsupportedModel, match=f"a {arch} model"):
        load(good, draft=str(path))


def test_a_model_that_looks_ahead_is_refused(tmp_path):
    """Whatever its architecture, and where an override makes it one: llama.cpp ends the process for its longer prompts."""
    made = tiny_llama()
    good, path = tmp_path / "good.gguf", tmp_path / "ahead.gguf"
    made.write(good)
    made.kv["llama.attention.causal"] = (BOOL, False)
    made.write(path)
    for options in ({}, {"n_batch": 64, "n_ubatch": 32}):
        with pytest.raises(UnsupportedModel, match="is not causal"):
            load(path, **options)
    with pytest.raises(UnsupportedModel, match="is not causal"):
        load(good, kv_overrides={"llama.attention.causal": False})
    with pytest.raises(UnsupportedModel, match="is not causal"):
        load(good, draft=str(path))
    load(path, kv_overrides={"llama.attention.causal": True}).close()


def test_a_command_says_it(tmp_path, command):
    path = tiny_positions.bert(64).write(tmp_path / "bert.gguf")
    code, said = command(path)
    assert code == 1
    assert "'bert.gguf' is a bert model, which turns texts into embeddings" in said
