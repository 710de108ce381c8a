"""Memories that are not a plain KV: sliding windows and recurrent states."""

from __future__ import annotations

import pytest
import tiny
from answers import ask, foretelling

from pyspec.errors import UnsupportedModel
from pyspec.sampling import Sampling

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
SAMPLED = Sampling(temperature=1.0, seed=4)


@pytest.fixture(params=[True, False], ids=["full-cache", "window-cache"])
def sliding(request, open_llama, open_plain, tiny_sliding):
    """Opens the sliding-window model, its cache whole or as small as the window lets it be."""
    options = {"swa_full": request.param, "n_ctx": 1024, "n_ubatch": 64, "n_batch": 64}
    return lambda **more: open_llama(tiny_sliding, **options, **more), lambda: open_plain(
        tiny_sliding, **options
    )


def test_text_of_the_sliding_model_is_worth_comparing(sliding):
    """Sampled past the window it does not just repeat itself."""
    assert len(set(ask(sliding[0](), PROMPT, 100, SAMPLED).ids)) > 15


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), SAMPLED])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_answer_far_past_the_window(sliding, tiny_sliding, k, sampling):
    """500 tokens over a window of 16: drafting, refusing and rolling back leave the text as plain decoding has it."""
    plain = ask(sliding[0](), PROMPT, 500, sampling)
    llm = sliding[0](draft=tiny_sliding, length=f"fixed:{k}")
    assert ask(llm, PROMPT, 500, sampling).ids == plain.ids
    assert llm.last_speculation["accepted"] > 0


def test_wrong_drafts_past_the_window(sliding):
    """Drafts refused after a long stretch of the window are rolled back rightly."""
    plain = ask(sliding[0](), PROMPT, 500, SAMPLED)
    text = [*PROMPT, *plain.ids]
    text[50::7] = [3 + (token - 2) % 29 for token in text[50::7]]
    llm = sliding[0](draft=foretelling(text), length="fixed:20")
    answer = ask(llm, PROMPT, 500, SAMPLED)
    assert answer.ids == plain.ids
    assert llm.last_speculation["accepted"] > 300
    assert llm.last_speculation["drafted"] > llm.last_speculation["accepted"]


def test_llama_cpp_python_agrees_past_the_window(sliding):
    """The reference is not our own: llama-cpp-python's greedy tokens."""
    stream = sliding[1]().generate(PROMPT, temp=0.0)
    assert ask(sliding[0](), PROMPT, 400).ids == [next(stream) for _ in range(400)]


def test_going_back_past_the_window_reads_again(sliding):
    """A prompt that shares only its beginning with what the cache holds is answered as by a fresh model."""
    llm = sliding[0]()
    answer = ask(llm, PROMPT, 500, SAMPLED)
    shorter = [*PROMPT, *answer.ids[:100], 9]
    assert ask(llm, shorter, 40, SAMPLED).ids == ask(sliding[0](), shorter, 40, SAMPLED).ids


def test_window_cache_forgets(open_llama, tiny_sliding):
    """A window's cache does drop what is out of sight, so the tests above are not about a whole cache."""
    for full, kept in ((True, 50), (False, 0)):
        llm = open_llama(tiny_sliding, swa_full=full, n_ctx=1024, n_ubatch=64, n_batch=64)
        answer = ask(llm, PROMPT, 500, SAMPLED)
        ask(llm, [*PROMPT, *answer.ids[:47], 9], 1)
        assert llm.last_speculation["prompt_kept"] == kept


def test_recurrent_model_is_decoded_plainly(open_llama, open_plain, tiny_recurrent, caplog):
    """With draft "auto" a recurrent model answers as llama-cpp-python does, and a note says why nothing is drafted."""
    stream = open_plain(tiny_recurrent).generate(PROMPT, temp=0.0)
    llm = open_llama(tiny_recurrent, draft="auto", companion="auto")
    answer = ask(llm, PROMPT, 50)
    assert answer.ids == [token for token, _ in zip(stream, range(50))]
    assert llm.last_speculation["drafted"] == 0
    assert "recurrent" in caplog.text


@pytest.mark.parametrize("draft", ["lookup", "path"])
def test_recurrent_model_refuses_a_named_draft(open_llama, tiny_recurrent, draft):
    """Who asks for a draft by name is told in one sentence that this model cannot have one."""
    with pytest.raises(UnsupportedModel, match="cannot be rolled back"):
        open_llama(tiny_recurrent, draft=tiny_recurrent if draft == "path" else draft)


def test_recurrent_model_refuses_a_drafter_object(open_llama, tiny_recurrent):
    """The same for a drafter given as an object."""
    with pytest.raises(UnsupportedModel):
        open_llama(tiny_recurrent, draft=foretelling([]))


def test_recurrent_model_answers_again_rightly(open_llama, tiny_recurrent):
    """Its memory cannot keep a prefix, so each prompt is read from its beginning: same text every time."""
    llm = open_llama(tiny_recurrent)
    first = ask(llm, PROMPT, 20)
    assert (
        ask(llm, [*PROMPT, *first.ids[:10], 9], 20).ids
        == ask(open_llama(tiny_recurrent), [*PROMPT, *first.ids[:10], 9], 20).ids
    )
    assert ask(llm, PROMPT, 20).ids == first.ids


def test_recurrent_draft_is_refused(open_llama, tiny_target, tiny_recurrent):
    """A recurrent model cannot draft either."""
    with pytest.raises(UnsupportedModel):
        open_llama(tiny_target, draft=tiny_recurrent)
