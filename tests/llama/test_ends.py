"""How answers end, and what is left in the context: no text is lost, and none that nobody saw stays."""

import threading

import pytest
from helpers import tiny
from helpers.answers import Scripted
from helpers.completions import PROMPT, greedy, stable

JAPANESE = "日本の首都は東京です。日本の首都は"


@pytest.mark.parametrize(
    "how", [{"max_tokens": 11}, {"max_tokens": 12}, {"max_tokens": 11, "stream": True}]
)
def test_a_character_is_finished_though_max_tokens_falls_inside(
    open_llama, open_plain, smollm2, how
):
    ours, theirs = open_llama(smollm2, draft="lookup"), open_plain(smollm2)
    made = [llm.create_completion(JAPANESE, temperature=0.0, **how) for llm in (ours, theirs)]
    found, wanted = (
        [stable(part) for part in (each if "stream" in how else [each])] for each in made
    )
    assert text_of(found) == text_of(wanted) != ""
    assert "stream" in how or found == wanted


def text_of(parts):
    return "".join(part["choices"][0]["text"] for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_answer_keeps_its_text(open_llama, tiny_ascii, stream):
    holder = []

    def cancel(tokens, _limit):
        if len(tokens) > 30:
            other = threading.Thread(target=holder[0].cancel)
            other.start()
            other.join()
        return []

    holder.append(open_llama(tiny_ascii, draft=Scripted(cancel), n_ctx=1024))
    whole = greedy(open_llama(tiny_ascii))["choices"][0]["text"]
    found = holder[0].create_completion(PROMPT, stream=stream, temperature=0, max_tokens=500)
    chunks = list(found) if stream else [found]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "cancelled"
    assert text == whole[: len(text)]
    assert len(text) >= 31 - len(PROMPT)
    again = greedy(holder[0], "zz", max_tokens=5)
    assert again["usage"]["completion_tokens"] == 5


def test_cancel_between_answers_does_nothing(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii)
    whole = greedy(llm)
    llm.cancel()
    llm.eval(llm.tokenize(b"abc"))
    llm.cancel()
    assert greedy(llm) == whole


@pytest.mark.parametrize("k", [1, 3, 6])
def test_what_the_caller_did_not_see_is_no_text(pair, k):
    tokens = pair[0].tokenize(PROMPT.encode())
    found = []
    for llm in pair:
        stream = llm.generate(tokens, temp=0.0)
        ids = [next(stream) for _ in range(k)]
        stream.close()
        held = llm.input_ids[: llm.n_tokens].tolist()
        stream = llm.generate([40, 41], temp=0.0, reset=False)
        found.append((ids, held, [next(stream) for _ in range(10)]))
        stream.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("n_ctx", [17, 64, 300, 1000])
@pytest.mark.parametrize("draft", ["none", "tiny"])
def test_a_context_is_filled_to_its_end(open_llama, tiny_ascii, n_ctx, draft):
    """llama.cpp rounds contexts up; an answer that fills one ends with what it wrote, and the object goes on."""
    llm = open_llama(tiny_ascii, n_ctx=n_ctx, draft=tiny_ascii if draft == "tiny" else draft)
    prompt = llm.tokenize(PROMPT.encode())
    steps = list(llm.steps(prompt))
    assert steps[-1].finish_reason == "context"
    assert len(prompt) + sum(len(step.tokens) for step in steps) == llm.n_ctx() + 1
    result = llm.create_completion(PROMPT, max_tokens=None, temperature=0.0)
    assert result["choices"][0]["finish_reason"] == "length"
    assert len(result["choices"][0]["text"]) == llm.n_ctx() - len(PROMPT)


def test_a_context_that_ends_inside_a_character_keeps_the_text(open_llama, smollm2):
    llm = open_llama(smollm2, n_ctx=256)
    tokens = llm.tokenize((JAPANESE * 12).encode())
    for n in (237, 238):
        result = llm.create_completion(tokens[:n], max_tokens=None, temperature=0.0)
        assert result["choices"][0]["finish_reason"] == "length"
        assert result["choices"][0]["text"]


@pytest.mark.parametrize("n_batch", [1, 2, 8])
@pytest.mark.parametrize("draft", ["tiny", "lookup"])
def test_drafts_fit_a_small_batch(open_llama, open_plain, tiny_ascii, tiny_folder, n_batch, draft):
    """n_batch rows are all that one decode takes: a draft has at most one row less; LangChain's n_batch is 8."""
    path = tiny.write(tiny_folder / "batch-draft.gguf", tokens=tiny.ASCII, noise=0.15)
    own = {"draft": path if draft == "tiny" else draft, "length": "fixed:16"}
    llm = open_llama(tiny_ascii, n_batch=n_batch, **own)
    assert greedy(llm, max_tokens=120) == greedy(open_plain(tiny_ascii), max_tokens=120)
    assert (llm.last_speculation["accepted"] > 0) is (n_batch > 1)


def test_a_companion_fits_a_small_batch(open_llama, tiny_target, tiny_draft, tiny_companion):
    own = {"draft": tiny_draft, "companion": tiny_companion, "length": "companion", "n_batch": 8}
    assert greedy(open_llama(tiny_target, **own), "abc") == greedy(open_llama(tiny_target), "abc")
