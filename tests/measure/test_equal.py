"""Answers that must be equal: where they part, and what is forgiven."""

from copy import deepcopy

import msgspec
import numpy as np
import pytest
from helpers.making import SETUP, record, turn
from measure.bench import Runner
from measure.contenders import Ours
from measure.equal import choices, demand_equal, equality, first_differences
from measure.questions import Question
from measure.records import Difference, RunLog
from measure.tasks import Options, UnequalOutputs, parse_mode

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.text.template import ChatTemplate


def parted(*tokens, who="strict", **more):
    plain = record("plain", 1, turn([1, 2, 3]), turn([4, 5]), exact=True)
    other = record(who, 1, *(turn(t) for t in tokens), **{"exact": True, **more})
    return first_differences([plain, other])


def test_equal_answers_have_no_difference_and_some_are_not_compared():
    assert parted([1, 2, 3], [4, 5]) == []
    assert parted([7], exact=False) == parted([7], error="no") == []


def test_the_first_difference_is_named_with_turn_and_place():
    (found,) = parted([1, 2, 3], [9, 5])
    assert (found.turn, found.place, found.plain, found.other) == (1, 0, 4, 9)
    assert "turn 2, token 1: 9, not 4" in str(found)
    (shorter,) = parted([1, 2])
    assert (shorter.place, shorter.plain, shorter.other) == (2, 3, None)


def test_what_rounding_makes_again_is_forgiven_and_nothing_else():
    (found,) = parted([1, 9])
    demand_equal([msgspec.structs.replace(found, gap=3.0, rounding=True)], set())
    for rounding in (False, None):
        with pytest.raises(UnequalOutputs, match="question 1, turn 1, token 2"):
            demand_equal([msgspec.structs.replace(found, gap=0.001, rounding=rounding)], set())
    demand_equal(parted([1, 9], who="server", peer=True), {"server"})  # peers are only reported


def test_a_gap_is_of_the_run_that_differs(open_llama, tiny_ascii, monkeypatch):
    """Above temperature 0 plain decoding answers each repeat otherwise, and the second turn's prompt has that answer."""
    llm = open_llama(tiny_ascii)
    texts: list[list[int]] = []

    def row(_llm, text):
        texts.append(text)
        return np.array([1.0, 3.0], dtype=np.float32)

    monkeypatch.setattr("measure.equal.row_after", row)
    records = [record("plain", 1, turn([10 + i]), turn([7, 8]), repeat=i) for i in (0, 1)]
    records.append(record("strict", 1, turn([10]), turn([7, 9]), repeat=0, exact=True))
    records.append(record("strict", 1, turn([11]), turn([7, 9]), repeat=1, exact=True))
    found = equality(llm, records, [Question(1, "qa", ["abc", "more"])])
    assert [(one.repeat, one.gap) for one in found] == [(0, 2.0), (1, 2.0)]
    assert [text[-1] for text in texts] == [7, 7]
    first, second = texts
    assert [(a, b) for a, b in zip(first, second, strict=True) if a != b] == [(10, 11)]


def test_a_token_alone_after_truncation_is_the_least_near_tie(open_llama, tiny_ascii, monkeypatch):
    """Its lead is infinite, which JSON does not know: the difference says so, and still does when read again."""
    row = np.array([1.0, 9.0], dtype=np.float32)
    monkeypatch.setattr("measure.equal.row_after", lambda *_: row)
    hot = msgspec.structs.replace(SETUP, temperature=0.8)
    records = [record(who, 1, turn([i]), exact=True) for who, i in (("plain", 10), ("strict", 11))]
    records = [msgspec.structs.replace(one, setup=hot) for one in records]
    (found,) = equality(open_llama(tiny_ascii), records, [Question(1, "qa", ["abc"])])
    again = msgspec.json.decode(msgspec.json.encode(found), type=Difference)
    assert again.gap == "alone"
    assert "truncation leaves the target one token" in str(again)


ANIMALS = "Write a long list of animals and where they live."
QUESTIONS = [Question(1, "qa", [ANIMALS, "And of trees?"])]
SIZES = [(10, 0.0), (5, 0.8), *(pytest.param(each, marks=pytest.mark.slow) for each in ((48, 0.0), (24, 0.8)))]  # fmt: skip
"""Tokens of an answer, and the temperature."""


@pytest.fixture(scope="module")
def exact_llm(smollm2):
    """A Q8_0 file, whose rows round otherwise in every width; no answer is timed again because of other programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspec.machine.machine.Watch.others", lambda _watch: 0.0)
        how = {"n_ctx": 512, "n_threads": 1, "verbose": False}
        with SpeculativeLlama(smollm2, draft="lookup", **how) as llm:
            yield llm


@pytest.fixture(scope="module", params=SIZES)
def answered(request, exact_llm, tmp_path_factory):
    n, temperature = request.param
    setup = msgspec.structs.replace(SETUP, temperature=temperature)
    names = ("plain", "fixed:3+strict", "fixed:7+strict")
    modes = [Ours(exact_llm, parse_mode(name), temperature) for name in names]
    how = Options(max_tokens=n, warm_up=0, temperature=temperature)
    journal = RunLog(tmp_path_factory.mktemp("answered") / "runs.jsonl", setup)
    return exact_llm, Runner(exact_llm, modes, how, journal).run(QUESTIONS), how


def test_the_rows_of_each_round_make_every_choice_again(answered):
    """Also behind refused drafts, in whose places other tokens stand, and in a second turn."""
    llm, records, how = answered
    template = ChatTemplate.of(llm)
    for one in records:
        before = [turn.tokens for turn in one.turns]
        prompts = [QUESTIONS[0].prompt(template, before[:i]) for i in range(len(before))]
        turns = list(zip(prompts, one.turns, strict=True))
        for number, (prompt, answer) in enumerate(turns):
            assert choices(llm, turns[: number + 1], how.sampling(prompt)) == answer.tokens
    rounds = [each for one in records for turn in one.turns for each in turn.rounds]
    assert how.temperature or any(rows > emitted for rows, emitted in rounds)


def test_a_token_that_rounding_does_not_make_is_told(answered):
    llm, (plain, *others), _ = answered
    demand_equal(equality(llm, [plain, *others], QUESTIONS), set())
    wrong = deepcopy(plain)
    wrong.who = "strict"
    place = len(wrong.turns[0].tokens) * 5 // 8
    wrong.turns[0].tokens[place] += 1
    (found,) = equality(llm, [plain, wrong], QUESTIONS)
    assert (found.place, found.rounding) == (place, False)
    assert isinstance(found.gap, float)
    assert found.gap > 0.0
