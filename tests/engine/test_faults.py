"""Drafters, drafts and companions that fail, cancelling, and two users of one model: the text stays the target's."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import tiny
from helpers.answers import GREEDY, Scripted, ask, counters, foretelling

from pyspec.draft.lookup import Proposal
from pyspec.engine import answer_lock
from pyspec.errors import ContextOverflow, EngineBusy, EngineError, InputError

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]


def raising(*_):
    raise RuntimeError("no draft today")


JUNK = {
    "raises": raising, "too large an id": lambda _tokens, _limit: [tiny.N_VOCAB],
    "id of 2^40": lambda _tokens, _limit: [2**40], "negative id": lambda _tokens, _limit: [-1],
    "too many": lambda _tokens, limit: [5] * (limit + 1),
    "floats": lambda _tokens, _limit: [3.5], "whole floats": lambda _tokens, _limit: [3.0],
    "texts": lambda _tokens, _limit: ["a"], "nothing": lambda _tokens, _limit: None,
    "no proposal": lambda _tokens, _limit: 7,
    "match that is no number": lambda _tokens, _limit: Proposal([5], "long"),
}  # fmt: skip


@pytest.mark.parametrize("kind", JUNK)
def test_junk_of_a_drafter_is_left_out(open_llama, tiny_target, reference, caplog, kind):
    with caplog.at_level(logging.WARNING, "pyspec"):
        answer = ask(open_llama(tiny_target, draft=Scripted(JUNK[kind])), PROMPT)
    assert answer.ids == reference
    assert [record.name for record in caplog.records] == ["pyspec"]
    assert "scripted" in caplog.text


def test_drafter_that_fails_now_and_then_serves_in_between(open_llama, tiny_target, reference):
    """Ids of numpy are ids."""
    text = np.asarray([*PROMPT, *reference])
    bad_at = [len(PROMPT) + 1, len(PROMPT) + 2]

    def write(tokens, limit):
        bad = len(tokens) in bad_at
        return [-1] if bad else Proposal(text[len(tokens) : len(tokens) + limit])

    answer = ask(open_llama(tiny_target, draft=Scripted(write)), PROMPT)
    assert answer.ids == reference
    assert answer.flags.startswith("ttt" + "aaaat")


def test_drafter_that_cannot_hear_is_left_alone(open_llama, tiny_target, reference, caplog):
    drafter = foretelling([*PROMPT, *reference])
    drafter.end = raising
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert ask(open_llama(tiny_target, draft=drafter), PROMPT).ids == reference
    assert len(caplog.records) == 1


class Breaking:
    """Stands before an engine and makes one of its calls fail from the k-th on, for a while."""

    def __init__(self, engine, name, first, count, error):
        self._call, self._seen = getattr(engine, name), 0
        self._first, self._last, self._error = first, first + count, error
        setattr(engine, name, self)

    def __call__(self, *args, **kwargs):
        self._seen += 1
        if self._first <= self._seen < self._last:
            raise self._error
        return self._call(*args, **kwargs)


@pytest.mark.parametrize(("call", "said"), [("score", "the companion"), ("draft", "the draft")])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_what_fails_is_left_out(
    open_llama, tiny_target, tiny_draft, tiny_companion, reference, caplog, first, call, said
):
    llm = open_llama(tiny_target, draft=tiny_draft, companion=tiny_companion, length="companion")
    Breaking(llm.assembly.engine, call, first, 1000, EngineError("it broke"))
    with caplog.at_level(logging.WARNING, "pyspec"):
        answer = ask(llm, PROMPT)
    assert answer.ids == reference
    assert caplog.text.count(f"{said} failed") == 1


def test_what_a_draft_drafted_before_it_failed_is_dropped(open_llama, tiny_target):
    """The next draft begins anew: nothing says how its tokens came about."""
    llm = open_llama(tiny_target, draft=tiny_target)
    engine, kept = llm.assembly.engine, []
    draft = engine.draft

    def break_after(*arguments, **options):
        draft(*arguments, **options)
        kept.append(engine.drafted(0).n)
        raise EngineError("it broke")

    engine.draft = break_after
    steps = llm.steps(PROMPT, GREEDY, max_tokens=10)
    for _ in range(2):
        next(steps)
    assert kept == [4]
    assert engine.drafted(0).n == 0
    steps.close()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancel_in_an_answer_keeps_its_text(open_llama, tiny_target, tiny_draft, reference, after):
    llm = open_llama(tiny_target, draft=tiny_draft)
    steps, ids = llm.steps(PROMPT, GREEDY, max_tokens=40), []
    for i, step in enumerate(steps):
        ids += [token.id for token in step.tokens]
        if i == after:
            llm.cancel()
    assert step.finish_reason == "cancelled"
    assert ids == reference[: len(ids)]
    assert ask(llm, PROMPT).ids == reference


def test_cancel_while_the_prompt_is_read(open_llama, tiny_target, reference):
    llm, fresh = (open_llama(tiny_target, n_ctx=1024) for _ in range(2))
    prompt, seen = (PROMPT * 300)[:800], []

    def progress(done, total):
        if done:
            seen.append((done, total))
            llm.cancel()

    answer = ask(llm, prompt, progress=progress)
    assert (answer.ids, answer.finish_reason) == ([], "cancelled")
    assert seen == [(256, 799)]
    assert llm.n_tokens == 256
    told: list[tuple[int, int]] = []
    whole = ask(fresh, prompt, progress=lambda *how: told.append(how)).ids
    assert told == [(done, 799) for done in (0, 256, 512, 768, 799)]
    assert ask(llm, prompt).ids == whole
    assert llm.last_speculation["prompt_kept"] == 256
    assert ask(llm, PROMPT).ids == reference


def test_cancel_inside_a_decode_reaches_llama(open_llama, tiny_target, reference):
    """The flag is read between the nodes of a decode too: what llama.cpp threw away is read again."""
    llm = open_llama(tiny_target, n_ctx=4096, n_batch=2048)
    engine = llm.assembly.engine
    prompt = (PROMPT * 1400)[:4000]
    engine.set_tokens(0, prompt)
    caught = 0
    for delay in (1e-4, 1e-3, 3e-3, 1e-2):
        engine.cancel(raised=False)
        timer = threading.Timer(delay, engine.cancel)
        timer.start()
        try:
            while left := len(prompt) - 1 - engine.held(0, 0):
                engine.verify([(0, min(left, 2048), -1)])
        except EngineError as error:
            caught += error.code == 7
        timer.join()
    assert caught > 0
    assert ask(llm, PROMPT).ids == reference


def test_prompt_longer_than_the_context_is_refused_before_any_decode(
    open_llama, tiny_target, reference
):
    llm = open_llama(tiny_target)
    with pytest.raises(ContextOverflow) as caught:
        ask(llm, PROMPT * 100)
    assert (caught.value.have, caught.value.need) == (256, 300)
    assert counters(llm.assembly.engine).decodes == (0, 0, 0)
    assert ask(llm, PROMPT).ids == reference


def test_a_prompt_of_nothing_or_of_ids_outside_the_vocabulary_is_refused(
    open_llama, tiny_target, reference
):
    llm = open_llama(tiny_target)
    ask(llm, PROMPT, 5)
    for bad in ([], *([*PROMPT, i] for i in (-1, tiny.N_VOCAB, 2**31 - 1))):
        with pytest.raises(InputError):
            ask(llm, bad)
    assert ask(llm, PROMPT).ids == reference


def test_a_suspended_answer_is_given_up_by_cancel(open_llama, tiny_target, reference):
    llm = open_llama(tiny_target, draft=tiny_target)
    first = llm.steps(PROMPT, GREEDY, max_tokens=40)
    next(first)
    llm.cancel()
    assert ask(llm, PROMPT).ids == reference
    with pytest.raises(EngineBusy):
        next(first)
    second = llm.steps(PROMPT, GREEDY, max_tokens=40)
    next(second)
    llm.cancel()
    assert list(second)[-1].finish_reason == "cancelled"


def test_a_thread_does_not_wait_for_itself_for_ever(open_llama, tiny_target, monkeypatch):
    monkeypatch.setattr(answer_lock, "OWN_WAIT_S", 0.05)
    llm = open_llama(tiny_target)
    first = llm.steps(PROMPT, GREEDY, max_tokens=40)
    next(first)
    with pytest.raises(EngineBusy):
        ask(llm, [9, 8, 7])


def test_two_threads_get_a_right_answer_or_engine_busy(open_llama, tiny_target):
    llm = open_llama(tiny_target, draft=tiny_target, wait=False)
    prompts = [[3 + i, 9, 5] for i in range(4)]
    wanted = [ask(llm, prompt, 60).ids for prompt in prompts]

    def once(i):
        try:
            return ask(llm, prompts[i], 60).ids == wanted[i]
        except EngineBusy:
            return "busy"

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(once, [*range(4)] * 15))
    assert False not in results
    assert results.count("busy") > 0
    assert ask(llm, prompts[0], 60).ids == wanted[0]


def test_close_while_a_thread_decodes(open_llama, tiny_target):
    llm = open_llama(tiny_target, n_ctx=4096)
    began, ends = threading.Event(), []

    def answer():
        try:
            for step in llm.steps(PROMPT, GREEDY):
                began.set()
                ends.append(step.finish_reason)
        except EngineError as error:
            ends.append(type(error).__name__)

    thread = threading.Thread(target=answer)
    thread.start()
    began.wait()
    llm.close()
    thread.join()
    assert ends[-1] in ("cancelled", "EngineBusy")


def test_close_twice_and_use_after_close(open_llama, tiny_target):
    llm = open_llama(tiny_target)
    piece, tokenizer = llm.piece, llm.tokenizer_
    llm.close()
    llm.close()
    for use in (
        lambda: ask(llm, PROMPT),
        lambda: llm.create_completion("abc"),
        lambda: llm.create_chat_completion([{"role": "user", "content": "abc"}]),
        lambda: next(llm.generate(PROMPT)),
        lambda: piece(7),
        lambda: tokenizer.tokenize(b"abc"),
        lambda: tokenizer.detokenize([7]),
    ):
        with pytest.raises(EngineError, match="closed"):
            use()
