"""What an object is asked while it answers is refused at once, and changes nothing."""

from concurrent.futures import ThreadPoolExecutor

import llama_cpp
import pytest
from helpers.completions import GREEDY, PROMPT, greedy

from pyspec.engine.options import AnswerOptions
from pyspec.errors import EngineBusy, InputError

CALLS = {
    "eval": lambda llm: llm.eval([5]), "embed": lambda llm: llm.embed("a"),
    "create_embedding": lambda llm: llm.create_embedding("a"),
    "create_completion": lambda llm: llm.create_completion("a", max_tokens=1),
    "stream": lambda llm: list(llm.create_completion("a", max_tokens=1, stream=True)),
    "call": lambda llm: llm("a", max_tokens=1),
    "create_chat_completion": lambda llm: llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=1),
    "generate": lambda llm: next(llm.generate([5, 6])), "steps": lambda llm: next(llm.steps([5, 6])),
    "save_state": lambda llm: llm.save_state(), "load_state": lambda llm: llm.load_state(None),
    "reset": lambda llm: llm.reset(), "sample": lambda llm: llm.sample(), "close": lambda llm: llm.close(),
}  # fmt: skip
"""Every public method that uses the context."""

READS = (
    lambda llm: llm.tokenize(b"a"), lambda llm: llm.detokenize([5]), lambda llm: llm.n_ctx(),
    lambda llm: llm.token_bos(), repr,
)  # fmt: skip
"""And those that do not."""


def in_processor(llm, act):
    def process(ids, logits):
        act()
        return logits

    llm.create_completion(PROMPT, logits_processor=llama_cpp.LogitsProcessorList([process]), **GREEDY)  # fmt: skip


def in_criterion(llm, act):
    criteria = llama_cpp.StoppingCriteriaList([lambda _ids, _logits: bool(act()) and False])
    llm.create_completion(PROMPT, stopping_criteria=criteria, **GREEDY)


def in_another_thread(llm, act):
    with ThreadPoolExecutor(1) as pool:
        in_processor(llm, lambda: pool.submit(act).result())


def in_progress(llm, act):
    list(llm.steps([5, 6, 7], AnswerOptions(max_tokens=2, progress=lambda *_: act())))


def in_stream(llm, act):
    for _ in llm.create_completion(PROMPT, stream=True, **GREEDY):
        act()


PLACES = {
    "processor": in_processor, "criterion": in_criterion, "progress": in_progress, "stream": in_stream,
    "another thread": in_another_thread,
}  # fmt: skip


ASKED = [(p, c) for p in PLACES for c in CALLS if c != "close" or p not in ("stream", "another thread")]  # fmt: skip
"""All places and calls; closing between chunks ends the stream, and in another thread it waits for the round."""


@pytest.mark.parametrize(("place", "call"), ASKED)
def test_a_call_is_refused_and_changes_nothing(place, call, open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, wait=False)
    wanted = greedy(llm)
    with pytest.raises(EngineBusy):
        PLACES[place](llm, lambda: CALLS[call](llm))
    assert greedy(llm) == wanted


@pytest.mark.parametrize("place", PLACES)
def test_reading_facts_is_no_call_on_the_context(place, open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii)
    PLACES[place](llm, lambda: [read(llm) for read in READS])


@pytest.mark.parametrize("texts", ["", [], ["a", ""]])
def test_a_text_without_tokens_is_not_embedded(texts, open_llama, tiny_ascii):
    """Nor does it damage memory, which would show when the model is closed."""
    llm = open_llama(tiny_ascii, embedding=True)
    with pytest.raises(InputError, match="no tokens"):
        llm.create_embedding(texts)
    assert len(llm.create_embedding("abc")["data"][0]["embedding"]) > 0
    llm.close()
