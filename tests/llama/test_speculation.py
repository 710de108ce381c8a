"""What `SpeculativeLlama` has beyond the original: its blocks, its choices for one call, its fallbacks."""

from contextlib import closing

import numpy as np
import pytest
from helpers.answers import Scripted, ask
from helpers.completions import GREEDY, PROMPT, greedy, stable
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from pyspec.errors import OptionError
from pyspec.llama.speculative import OFF, Speculation
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Margin, Strict


def test_speculation_block(pair):
    ours, _ = pair
    # of the same type, for type checkers
    assert ours.last_speculation.sentence == "nothing was decoded"
    result = ours.create_completion(PROMPT, **GREEDY)
    block = result["speculation"]
    assert block is ours.last_speculation
    assert (block["draft"], block["companion"]) == ("ascii", "none")
    assert block["verification"] == "strict"
    assert block["accepted"] == block["drafted"] == sum(block["accepted_by_position"])
    assert block["rounds"] + block["accepted"] == 40
    assert block["prompt_tokens"] == len(PROMPT)
    assert ours.scores.last is None


def test_off_for_one_call(pair):
    ours, _ = pair
    plain = ours.create_completion(PROMPT, speculation=OFF, **GREEDY)
    assert plain["speculation"]["drafted"] == 0
    assert plain["speculation"]["draft"] == "none"
    drafted = ours.create_completion(PROMPT, **GREEDY)
    assert drafted["speculation"]["drafted"] > 0
    assert stable(plain) == stable(drafted)


def test_length_for_one_call(pair):
    found = []
    for own in (Speculation(length="fixed:2"), None):
        pair[0].create_completion(PROMPT, speculation=own, **GREEDY)
        found.append(len(pair[0].last_speculation["accepted_by_position"]))
    assert found == [2, 4]


def test_bad_length_is_refused(pair, open_llama, tiny_ascii):
    with pytest.raises(OptionError):
        open_llama(tiny_ascii, length="fixed:x")
    with pytest.raises(OptionError):
        pair[0].create_completion(PROMPT, speculation=Speculation(length="long"), **GREEDY)


def test_streams_keep_their_own_rule(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft=tiny_ascii, verification=Margin())
    own = {"speculation": Speculation(verification=Strict())}
    chunks = llm.create_completion(PROMPT, stream=True, **own, **GREEDY)
    assert list(chunks)[-1]["speculation"]["verification"] == "strict"
    assert llm.create_completion(PROMPT, **GREEDY)["speculation"]["verification"] == "margin"


@pytest.mark.parametrize("name", ["draft", "draft_model"])
def test_draft_model_of_llama_cpp_python(open_llama, open_plain, tiny_ascii, name):
    options = {name: LlamaPromptLookupDecoding(num_pred_tokens=3)}
    if name == "draft_model":
        options["draft"] = "auto"
    llm = open_llama(tiny_ascii, **options)
    assert greedy(llm, max_tokens=150) == greedy(open_plain(tiny_ascii), max_tokens=150)
    assert llm.last_speculation["draft"] == "LlamaPromptLookupDecoding"
    assert llm.last_speculation["accepted"] > 0


@pytest.mark.parametrize("mode", ["embedding", "logits_all"])
def test_plain_modes_are_the_original(open_llama, open_plain, tiny_ascii, mode, caplog):
    pair = (open_llama(tiny_ascii, **{mode: True}), open_plain(tiny_ascii, **{mode: True}))
    if mode == "embedding":
        found, wanted = (llm.create_embedding("abc")["data"][0]["embedding"] for llm in pair)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    else:
        assert greedy(pair[0]) == greedy(pair[1])
        assert "plainly" in caplog.text


def test_drafter_may_ask_the_same_model(open_llama, tiny_ascii):
    holder = []
    drafter = Scripted(lambda tokens, limit: ask(holder[0], list(tokens), limit).ids)
    holder.append(open_llama(tiny_ascii, draft=drafter))
    assert greedy(holder[0]) == greedy(open_llama(tiny_ascii))


def test_generate_takes_the_samplers_that_llama_cpp_python_lacks(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=1024)
    more = {
        "dry_multiplier": 2.0,
        "dry_penalty_last_n": -1,
        "xtc_probability": 0.7,
        "xtc_threshold": 0.05,
    }
    tokens = llm.tokenize(b"abcabcabcabcabcab")
    llm.set_seed(4)
    with closing(llm.generate(tokens, temp=1.5, **more)) as stream:
        found = [next(stream) for _ in range(24)]
    assert found == ask(llm, tokens, 24, Sampling(temperature=1.5, seed=4, **more)).ids
    assert found != ask(llm, tokens, 24, Sampling(temperature=1.5, seed=4)).ids
