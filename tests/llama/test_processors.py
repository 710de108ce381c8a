"""Logits processors: they see what plain decoding shows them, and drafts are verified under them."""

import llama_cpp
import numpy as np
import pytest
from helpers.completions import GREEDY, PROMPT, greedy, stable

from pyspec.llama.speculative import OFF, Speculation

LONG = {**GREEDY, "max_tokens": 120}


def under(llm, *processors, prompt=PROMPT, **options):
    those = llama_cpp.LogitsProcessorList(processors)
    return llm.create_completion(prompt, logits_processor=those, **options)


@pytest.fixture
def watched(pair):
    """The pair, and the ids that each one's processor was shown, call by call."""
    seen = []

    def make():
        calls = []
        seen.append(calls)
        return lambda ids, logits: calls.append(ids.tolist()) or logits

    return pair, make, seen


@pytest.mark.parametrize("draft", [0, 4])
def test_ids_are_those_of_plain_decoding(watched, draft):

    pair, make, seen = watched
    for prompt in (PROMPT, "zzyyxx"):
        results = [
            under(llm, make(), prompt=prompt, **GREEDY, **extra)
            for llm, extra in zip(pair, ({"speculation": Speculation(draft_max=draft)}, {}))
        ]
        assert stable(results[0]) == stable(results[1])
    assert (results[0]["speculation"]["accepted"] > 0) is (draft > 0)
    for ours, theirs in (seen[:2], seen[2:]):
        # the original draws one token after another; ours may have drawn the rest of its last round too
        assert ours[: len(theirs)] == theirs
        assert len(ours) <= len(theirs) + draft


def no_repeat():
    def process(ids, logits):
        logits = np.copy(logits)
        logits[ids[-8:]] = -np.inf
        return logits

    return process


def alternate():
    """A processor with a state of its own: it raises letters in turn, one a call."""
    calls = []

    def process(_ids, logits):
        calls.append(0)
        logits = np.copy(logits)
        logits[30 + len(calls) % 5] += 8.0
        return logits

    return process


@pytest.mark.parametrize("make", [no_repeat, alternate])
@pytest.mark.parametrize("options", [LONG, {"max_tokens": 120, "seed": 3}])
def test_text_is_the_originals(pair, make, options):
    ours, theirs = (stable(under(llm, make(), **options)) for llm in pair)
    assert ours == theirs


def test_drafts_are_accepted_under_a_processor(open_llama, open_plain, tiny_ascii):
    pair = (open_llama(tiny_ascii, draft="lookup"), open_plain(tiny_ascii))
    ours, theirs = (under(llm, alternate(), **LONG) for llm in pair)
    assert stable(ours) == stable(theirs)
    assert ours["speculation"]["accepted"] > 20
    assert ours["speculation"]["verification"] == "strict"


def test_processor_beside_bias_and_penalties(open_llama, tiny_ascii):
    """With a bias and a penalty, drafts change nothing; the original drops both processors where a bias is given too."""
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    options = {**LONG, "logit_bias": {7: 3.0}, "repeat_penalty": 1.3}
    made = [under(llm, no_repeat(), **options, speculation=how) for how in (None, OFF)]
    assert made[0]["choices"][0]["text"] == made[1]["choices"][0]["text"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_a_processor_raises_reaches_the_caller(pair, error):
    def broken(ids, logits):
        if len(ids) > 12:
            raise error("no logits today")
        return logits

    ours, theirs = pair
    with pytest.raises(error, match="no logits today"):
        under(ours, broken, **LONG)
    assert greedy(ours) == greedy(theirs)


def test_an_empty_list_is_no_processor(pair):
    assert stable(under(pair[0], **GREEDY)) == greedy(pair[0])
