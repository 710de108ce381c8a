"""Results tell whose noise drew them, and its seed: by it a text can be had again."""

from __future__ import annotations

import json

import pytest
import tiny
from answers import ask

from pyspec.batch import Settings
from pyspec.batch.output import public
from pyspec.batch.records import Record
from pyspec.sampling import Sampling

WARM = Sampling(temperature=1.5)
MIROSTAT = Sampling(temperature=1.5, seed=5, mirostat_mode=2)


def test_the_class_tells_its_seed(open_llama, tiny_target):
    """Also one of chance; nothing at temperature 0."""
    llm = open_llama(tiny_target)
    prompt = [tiny.A, tiny.A + 1]
    first = ask(llm, prompt, 20, WARM)
    told = llm.last_speculation
    assert told["sampling"] == "coupled"
    again = ask(llm, prompt, 20, Sampling(temperature=1.5, seed=told["seed"]))
    assert again.ids == first.ids
    ask(llm, prompt, 20)
    assert not {"sampling", "seed"} & llm.last_speculation.keys()


def test_mirostat_says_that_llama_cpp_draws(open_llama, open_batch, tiny_target):
    """Its noise is that library's own, at the seed that is told."""
    llm = open_llama(tiny_target)
    ask(llm, [tiny.A], 8, MIROSTAT)
    told = {key: llm.last_speculation[key] for key in ("sampling", "seed")}
    assert told == {"sampling": "llama.cpp", "seed": 5}
    (result,) = open_batch(settings=Settings(MIROSTAT, max_tokens=8)).run(["ab"])
    assert result.speculation["sampling"] == "llama.cpp"


@pytest.mark.parametrize("form", ["", "chat"])
@pytest.mark.parametrize("counts", [False, True])
def test_a_line_of_output_has_the_seed(open_batch, form, counts):
    """With all counts or without, in either format; a record by itself says the same again at that seed."""
    batch = open_batch(settings=Settings(WARM, max_tokens=16, raw=True))
    results = list(batch.run([Record(id=name, prompt="ab") for name in "xy"]))
    lines = [json.loads(public(each, "run", form, counts=counts)) for each in results]
    blocks = [(line["response"]["body"] if form else line)["speculation"] for line in lines]
    assert {block["sampling"] for block in blocks} == {"coupled"}
    assert len({block["seed"] for block in blocks}) == 2
    for result, block in zip(results, blocks, strict=True):
        (again,) = batch.run([Record(id="z", prompt="ab", seed=block["seed"])])
        assert again.text == result.text


def test_greedy_lines_have_no_seed(open_batch):
    """Nothing was drawn."""
    (result,) = open_batch().run(["ab"])
    assert "seed" not in json.loads(public(result, "run"))["speculation"]
