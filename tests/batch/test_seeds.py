"""Results tell whose noise drew them, and its seed: by it a text can be had again."""

import json

import pytest
from helpers import tiny
from helpers.answers import ask

from pyspec.batch import Settings
from pyspec.batch.output import output_line
from pyspec.requests.records import Record
from pyspec.sampling.options import Sampling

WARM = Sampling(temperature=1.5)


@pytest.mark.parametrize("form", ["", "chat"])
def test_a_line_of_output_has_the_seed(open_batch, form):
    batch = open_batch(settings=Settings(WARM, max_tokens=16, raw=True))
    results = list(batch.run([Record(id=name, prompt="ab") for name in "xy"]))
    lines = [json.loads(output_line(each, "run", form)) for each in results]
    blocks = [(line["response"]["body"] if form else line)["speculation"] for line in lines]
    assert {block["sampling"] for block in blocks} == {"coupled"}
    assert len({block["seed"] for block in blocks}) == 2
    for result, block in zip(results, blocks, strict=True):
        (again,) = batch.run([Record(id="z", prompt="ab", seed=block["seed"])])
        assert again.text == result.text


SHAPES = [
    {}, {"dry_multiplier": 1.0, "dry_penalty_last_n": -1},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "dynatemp_range": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_cut_answer_goes_on_as_if_it_had_not_been(
    open_llama, tiny_target, tiny_draft, shape, cut
):
    prompt, sampling = [tiny.A, tiny.A + 1], Sampling(temperature=1.2, seed=11, **shape)
    whole = ask(open_llama(tiny_target), prompt, 40, sampling).ids
    first = ask(open_llama(tiny_target, draft=tiny_draft), prompt, cut, sampling).ids
    rest = ask(open_llama(tiny_target, draft="lookup"), [*prompt, *first], 40 - cut, sampling).ids
    assert [*first, *rest] == whole
