"""Values of a wrong type are refused with the name of their argument, before anything is generated."""

import json

import numpy as np
import pytest
from helpers.completions import GREEDY, PROMPT

import pyspec
from pyspec.batch import Batch
from pyspec.errors import InputError, OptionError

ASK = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(("name", "value"), [
    ("max_tokens", "6"), ("max_tokens", 6.5), ("seed", "1"), ("seed", 1.5), ("logit_bias", "a"), ("logit_bias", {"a": 1}),
    ("logit_bias", {5: "a"}), ("logit_bias", {5: float("nan")}), ("speculation", "off"),
    ("temperature", "hot"), ("top_k", 3.5),
])  # fmt: skip
def test_a_call_refuses_a_wrong_type(open_llama, tiny_ascii, name, value):
    with pytest.raises(OptionError, match=name):
        open_llama(tiny_ascii).create_completion(PROMPT, **{name: value})


@pytest.mark.parametrize(("name", "value"), [
    ("seed", "1"), ("companion", True), ("memory", 5), ("draft", 3), ("template_args", 3), ("template_args", {"messages": 1}),
])  # fmt: skip
def test_a_model_refuses_a_wrong_type(open_llama, tiny_ascii, name, value):
    with pytest.raises(OptionError, match=name.removesuffix("_args")):
        open_llama(tiny_ascii, **{"draft": "lookup", name: value})


@pytest.mark.parametrize(
    ("name", "near"), [("n_gpu_layer", "'n_gpu_layers'"), ("drafts", "'draft'")]
)
def test_an_argument_that_there_is_not_is_refused(tiny_ascii, name, near):
    """With the nearest one; llama-cpp-python ignores it."""
    with pytest.raises(TypeError, match=f"no argument '{name}'; did you mean {near}"):
        pyspec.SpeculativeLlama(str(tiny_ascii), **{name: 1})
    with pytest.raises(OptionError, match=f"'{name}'"):
        pyspec.install(**{name: 1})


def test_an_answer_with_logprobs_can_be_written_as_json(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft="none")
    answer = llm.create_completion(PROMPT, max_tokens=2, logprobs=2, echo=True)
    assert json.loads(json.dumps(answer))["choices"] == answer["choices"]


def test_a_whole_number_may_be_a_float(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft="lookup", f16_kv=True, n_parts=-1)  # retired arguments
    answer = llm.create_completion(PROMPT, **{**GREEDY, "max_tokens": 6.0})
    assert (answer["usage"]["completion_tokens"], answer["speculation"]["draft"]) == (6, "lookup")


def test_numbers_may_be_numpys(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii)
    numbers = {"temperature": np.float32(0.75), "top_k": np.int64(5), "seed": np.int64(3)}
    plain = {name: value.item() for name, value in numbers.items()}
    texts = [llm.create_completion(PROMPT, **n)["choices"][0]["text"] for n in (numbers, plain)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("records", ["text", ["text", 3]])
def test_a_batch_refuses_what_is_no_record(tiny_ascii, records):
    """A single text would otherwise be a record for each of its characters."""
    with Batch(tiny_ascii, n_ctx=256) as batch, pytest.raises(InputError, match="give"):
        list(batch.run(records))
