"""Memories that are not a plain KV: sliding windows and recurrent states."""

from functools import partial

import pytest
from helpers import tiny, tiny_archs
from helpers.answers import ask, foretelling
from helpers.forked import told

from pyspec.engine.models import longest_draft
from pyspec.engine.target import TargetLlama
from pyspec.errors import UnsupportedModel
from pyspec.gguf.kinds import NO_STATES
from pyspec.sampling.options import Sampling

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
SAMPLED = Sampling(temperature=1.0, seed=4, noise="llama.cpp")


@pytest.fixture(params=[True, False], ids=["full-cache", "window-cache"])
def sliding(request, open_llama, open_plain, tiny_sliding):
    options = {"swa_full": request.param, "n_ctx": 1024, "n_ubatch": 64, "n_batch": 64}
    return partial(open_llama, tiny_sliding, **options), partial(
        open_plain, tiny_sliding, **options
    )


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), SAMPLED])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_answer_far_past_the_window(sliding, tiny_sliding, k, sampling):
    plain = ask(sliding[0](), PROMPT, 500, sampling)
    llm = sliding[0](draft=tiny_sliding, length=f"fixed:{k}")
    assert ask(llm, PROMPT, 500, sampling).ids == plain.ids
    assert llm.last_speculation["accepted"] > 0


def test_wrong_drafts_past_the_window(sliding):
    plain = ask(sliding[0](), PROMPT, 500, SAMPLED)
    text = [*PROMPT, *plain.ids]
    text[50::7] = [3 + (token - 2) % 29 for token in text[50::7]]
    llm = sliding[0](draft=foretelling(text), length="fixed:20")
    answer = ask(llm, PROMPT, 500, SAMPLED)
    assert answer.ids == plain.ids
    assert llm.last_speculation["accepted"] > 300
    assert llm.last_speculation["drafted"] > llm.last_speculation["accepted"]


def test_going_back_past_the_window_reads_again(sliding):
    llm = sliding[0]()
    answer = ask(llm, PROMPT, 500, SAMPLED)
    assert len(set(answer.ids[:100])) > 15  # it is worth comparing
    shorter = [*PROMPT, *answer.ids[:100], 9]
    assert ask(llm, shorter, 40, SAMPLED).ids == ask(sliding[0](), shorter, 40, SAMPLED).ids
    stream = sliding[1]().generate(PROMPT, temp=0.0)  # llama-cpp-python agrees past the window
    assert ask(sliding[0](), PROMPT, 400).ids == [next(stream) for _ in range(400)]


def test_recurrent_model_is_decoded_plainly(open_llama, open_plain, tiny_recurrent, caplog):
    stream = open_plain(tiny_recurrent).generate(PROMPT, temp=0.0)
    llm = open_llama(tiny_recurrent, draft="auto", companion="auto")
    answer = ask(llm, PROMPT, 50)
    assert answer.ids == [token for token, _ in zip(stream, range(50))]
    assert llm.last_speculation["drafted"] == 0
    assert "recurrent" in caplog.text


@pytest.mark.parametrize("draft", ["lookup", "path", foretelling([])])
def test_recurrent_model_refuses_a_draft_that_is_asked_for(open_llama, tiny_recurrent, draft):
    with pytest.raises(UnsupportedModel, match="cannot be rolled back"):
        open_llama(tiny_recurrent, draft=tiny_recurrent if draft == "path" else draft)


@pytest.fixture(params=["lfm2", "qwen35"], scope="module")
def hybrid(request, tiny_folder):
    """Convolutions with attention, and delta nets with attention: llama.cpp keeps states of both."""
    path = tiny_folder / f"{request.param}.gguf"
    return tiny.write(path, arch=request.param, n_layer=4)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), SAMPLED])
@pytest.mark.parametrize("wrong", [0, 7, 3, 1])
def test_hybrid_rolls_back(open_llama, open_plain, hybrid, wrong, sampling):
    plain = ask(open_llama(hybrid), PROMPT, 150, sampling)
    if sampling.temperature == 0:
        stream = open_plain(hybrid).generate(PROMPT, temp=0.0)
        assert plain.ids == [next(stream) for _ in range(150)]
    text = [*PROMPT, *plain.ids]
    if wrong:
        text[10::wrong] = [3 + (token - 2) % 29 for token in text[10::wrong]]
    llm = open_llama(hybrid, draft=foretelling(text), length="fixed:20")
    assert ask(llm, PROMPT, 150, sampling).ids == plain.ids
    block = llm.last_speculation
    assert block["verified"] > block["accepted"] or not wrong
    assert wrong or block["accepted"] > 120
    assert len(block["accepted_by_position"]) <= 8  # as many as states are kept


def test_hybrid_goes_back_in_its_text(open_llama, hybrid):
    """One token, a few, or more than states are kept: where the state is gone the prompt is read again."""
    text = [*PROMPT, *ask(open_llama(hybrid), PROMPT, 60).ids]
    llm = open_llama(hybrid, draft=foretelling(text))
    for end in (60, 59, 58, 55, 30, 4, 61):
        found = ask(llm, text[:end], 8).ids
        assert found == ask(open_llama(hybrid), text[:end], 8).ids


@pytest.mark.parametrize("rows", [2, 4, 9, 10])
def test_small_batches_keep_fewer_states(open_llama, hybrid, rows):
    """Where a batch is not larger than what has to be kept of it, llama.cpp ends the process."""
    wanted = ask(open_llama(hybrid), PROMPT, 20).ids
    for size in ("n_batch", "n_ubatch"):
        llm = open_llama(hybrid, draft="auto", **{size: rows})
        assert ask(llm, PROMPT, 20).ids == wanted
        assert (llm.assembly.parts.names[0] == "none") == (rows == 2)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "qwen35"])
def test_cancel_in_a_decode_leaves_no_half_state(open_llama, tiny_folder, arch):
    """Cancelled between two nodes of a graph, some layers have gone on: the state must not be used again."""
    path = tiny.write(tiny_folder / f"cancel-{arch}.gguf", arch=arch, n_layer=4)
    llm = open_llama(path, n_ctx=2048)
    prompt = [3 + i * i % 29 for i in range(600)]
    wanted = ask(open_llama(path, n_ctx=2048), prompt, 10).ids

    def progress(done, total):
        if done > 300:
            llm.cancel()

    assert ask(llm, prompt, 10, progress=progress).finish_reason == "cancelled"
    assert ask(llm, prompt, 10).ids == wanted


_KEPT = "lfm2 lfm2moe qwen35 qwen35moe qwen4exp nemotron_h nemotron_h_moe bailingmoe3 kimi-k3 deepseek4 glm5-next"
NAMES = sorted({*_KEPT.split(), *NO_STATES} - tiny_archs.REFUSED - {"deepseek4"})


def goes_back(path):
    llm = TargetLlama(str(path), trust=True, verbose=False, n_ctx=64, n_threads=1)
    return bool(longest_draft(llm))


@pytest.mark.parametrize("arch", [*NAMES, pytest.param("deepseek4", marks=pytest.mark.slow)])
def test_it_is_known_whether_states_are_kept(arch, tmp_path):
    path = tmp_path / f"{arch}.gguf"
    assert tiny_archs.write(path, arch)
    assert told(goes_back, path) is (arch not in NO_STATES)
