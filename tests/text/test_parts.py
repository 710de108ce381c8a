"""One result for every door: as JSON of a journal, and what it says of speculation."""

import copy
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from pyspec.batch import Batch, Settings
from pyspec.engine.options import OFF, AnswerOptions
from pyspec.engine.statistics import Tally, speculation_report
from pyspec.sampling.options import Sampling
from pyspec.text import parts
from pyspec.text.parts import (
    Piece,
    RecordResult,
    result_of,
    speed_sentence,
    stats_line,
    targets_own,
)

BLOCK = {"times_plain": 1.5}


def test_an_answer_that_an_error_cut_says_so():
    assert result_of([Piece(targets_own([5]))], None).finish_reason == "error"


def test_a_journal_has_what_was_said_and_no_tokens():
    result = RecordResult(index=0, id="a", prompt_sha256="0", text="t", speculation=BLOCK)
    line = msgspec.json.encode(result)
    assert set(msgspec.json.decode(line)) == {"index", "id", "prompt_sha256", "text", "speculation"}
    assert msgspec.json.decode(line, type=RecordResult) == result


@pytest.fixture
def of_a_batch(tiny_ascii):
    how = {"settings": Settings(max_tokens=12, raw=True)}
    how |= {"n_ctx": 256, "parallel": 1, "n_threads": 1}
    with Batch(str(tiny_ascii), draft="lookup", **how) as batch:
        (result,) = batch.run(["hello"])
    return result


@pytest.fixture
def of_the_class(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft="lookup")
    llm.create_completion("hello", max_tokens=12, temperature=0)
    block: dict[str, Any] = llm.last_speculation
    return block


def test_the_block_has_the_same_keys_at_every_door(of_a_batch, of_the_class):
    block = of_a_batch.speculation
    assert block.keys() == of_the_class.keys()
    told = ("draft", "companion", "verification", "prompt_tokens")
    assert [block[name] for name in told] == [of_the_class[name] for name in told]
    assert stats_line(block, of_a_batch.rate).startswith("12 tokens | ")
    assert speed_sentence(block, of_a_batch.rate)


def test_what_decodes_plainly_has_no_draft():
    options = AnswerOptions(Sampling(temperature=0.0), OFF)
    report = speculation_report(Tally(), (1, 0), {"tokens_per_second": 9.0})
    block = options.block(Tally(), report, ("lookup", "judge"))
    assert (block["draft"], block["companion"]) == ("none", "none")


@pytest.mark.parametrize("more", [0.0, 1000.0])
def test_log_probabilities_are_of_a_sum_of_one(more):
    row = np.array([1.0, 3.0, 2.0, -50.0], np.float32)
    wanted = np.log(np.exp(row) / np.exp(row).sum())
    made = parts.TokenLogprobs.of(row + np.float32(more), 0, 2)
    assert made.value == pytest.approx(wanted[0])
    assert dict(made.top) == pytest.approx({1: wanted[1], 2: wanted[2]})
    assert [i for i, _ in made.top] == [1, 2]


def test_results_are_dicts_for_programs(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft="lookup")
    result = llm.create_completion("abcabcabc", max_tokens=12, temperature=0.0, logprobs=1)
    assert result["speculation"] is llm.last_speculation
    assert "tokens/s" in llm.last_speculation.sentence
    whole = json.loads(json.dumps(result))
    assert json.loads(msgspec.json.encode(copy.deepcopy(result))) == whole
    assert parts.SpeculationBlock({}).sentence == "nothing was decoded"
