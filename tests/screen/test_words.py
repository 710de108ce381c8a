"""The block `speculation` of results in Python: a dict with a sentence, and with what programs write as JSON."""

import copy
import json
import pickle

import msgspec
import pytest

from pyspec.screen.words import SpeculationBlock


@pytest.mark.parametrize("copied", [
    lambda block: json.loads(json.dumps(block)), lambda block: pickle.loads(pickle.dumps(block)), copy.deepcopy,
    lambda block: msgspec.json.decode(msgspec.json.encode(block)),
])  # fmt: skip
def test_results_are_dicts_for_programs(open_llama, tiny_ascii, copied):
    llm = open_llama(tiny_ascii, draft="lookup")
    result = llm.create_completion("abcabcabc", max_tokens=12, temperature=0.0, logprobs=1)
    assert result["speculation"] is llm.last_speculation
    assert "tokens/s" in llm.last_speculation.sentence
    assert json.loads(json.dumps(copied(result))) == json.loads(json.dumps(result))


def test_an_empty_block_has_a_sentence():
    assert SpeculationBlock({}).sentence == "nothing was decoded"
