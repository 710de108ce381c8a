"""Another model's nats of an answer: by hand from its logits, and of what does not fit."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from measure.judging import TextJudge

from pyspec.engine.target import TargetLlama
from pyspec.profiling.questions import Question
from pyspec.text.template import ChatTemplate

QUESTION = Question(1, "a", ["abc abc"])


@pytest.fixture
def judge(tiny_ascii):
    one = TextJudge(tiny_ascii, n_ctx=256, n_threads=1)
    yield one
    one.close()


def test_nats_are_those_of_its_own_logits(judge, tiny_ascii):
    """By llama-cpp-python alone: each token of the answer, given the question and the tokens before it."""
    llm = TargetLlama(str(tiny_ascii), n_ctx=256, n_threads=1, logits_all=True, verbose=False)
    prompt = QUESTION.prompt(ChatTemplate.of(llm))
    answer = llm.tokenize(b"hello", add_bos=False)
    llm.eval([*prompt, *answer])
    rows = llm.scores[len(prompt) - 1 : len(prompt) + len(answer) - 1].astype(np.float64)
    wanted = fmean(
        np.log(np.exp(row - row.max()).sum()) + row.max() - row[t]
        for row, t in zip(rows, answer, strict=True)
    )
    llm.close()
    assert judge.nats(QUESTION, "hello") == pytest.approx(wanted, abs=1e-3)


def test_the_order_of_answers_does_not_matter(judge):
    """What one answer left in its KV is not read into the next one's nats."""
    first, _, again = (judge.nats(QUESTION, text) for text in ("hello", "he said no", "hello"))
    assert first == pytest.approx(again, abs=1e-4)
    assert judge.nats(QUESTION, "hellp") != pytest.approx(first, abs=1e-4)


def test_an_empty_answer_costs_nothing(judge):
    assert judge.nats(QUESTION, "") == 0.0


def test_what_does_not_fit_is_cut(judge):
    """The prompt's beginning and the answer's end: half of the context is the answer's."""
    long = Question(1, "a", ["abc " * 100])
    assert judge.nats(long, "x" * 500) == pytest.approx(judge.nats(long, "x" * 128), abs=1e-6)
