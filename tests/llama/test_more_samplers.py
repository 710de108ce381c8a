"""DRY, XTC and dynamic temperature by keyword, where llama-cpp-python has none of them."""

import pytest
from helpers.answers import ask

from pyspec.errors import OptionError
from pyspec.sampling.options import Sampling

DRY = {"dry_multiplier": 2.0, "dry_sequence_breakers": ["x"], "dry_penalty_last_n": -1}
XTC = {"xtc_probability": 0.7, "xtc_threshold": 0.05}
HEAT = {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0}
TEXT = "abcabcabcabcabcab"


@pytest.fixture
def llm(open_llama, tiny_ascii):
    return open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=1024, sampling="coupled")


def told(llm, more):
    sampling = Sampling(temperature=1.5, seed=4, **more)
    tokens = llm.tokenize(TEXT.encode())
    return llm.detokenize(ask(llm, tokens, 24, sampling).ids, prev_tokens=tokens).decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [DRY, XTC, HEAT, {**DRY, **XTC, **HEAT}])
def test_completions(llm, more, stream):
    how = {"temperature": 1.5, "seed": 4, "max_tokens": 24}

    def text(**more):
        made = llm.create_completion(TEXT, stream=stream, **how, **more)
        return "".join(each["choices"][0]["text"] for each in (made if stream else [made]))

    assert text(**more) == told(llm, more) != told(llm, {})
    assert text() == told(llm, {})


def test_generate(llm):
    tokens = llm.tokenize(TEXT.encode())
    llm.set_seed(4)
    stream = llm.generate(tokens, temp=1.5, **DRY, **XTC)
    found = [next(stream) for _ in range(24)]
    stream.close()
    assert found == ask(llm, tokens, 24, Sampling(temperature=1.5, seed=4, **DRY, **XTC)).ids


@pytest.mark.parametrize("mode", ["logits_all", "embedding"])
def test_plain_modes_refuse_what_they_lack(open_llama, tiny_ascii, mode):
    """llama-cpp-python would decode without it."""
    llm = open_llama(tiny_ascii, **{mode: True})
    with pytest.raises(OptionError, match=r"^xtc_probability does not work with"):
        llm.create_completion(TEXT, xtc_probability=0.5)
    with pytest.raises(OptionError, match=r"^xtc_probability does not work with"):
        llm.generate(llm.tokenize(TEXT.encode()), xtc_probability=0.5)
