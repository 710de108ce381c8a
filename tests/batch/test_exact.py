"""Exact batches: a record's text is its own, on the real model too, where rows round by how many there are."""

import pytest

from pyspec.batch import Batch, Record, Settings
from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Sampling

THINGS = ("rain", "iron", "a fox", "tea", "the moon", "salt")
PROMPTS = [f"Write a line about {thing}." for thing in THINGS]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("n", "most"), [(3, 8), pytest.param(6, 20, marks=pytest.mark.slow)])
def test_text_does_not_depend_on_what_runs_beside_it(smollm2, temperature, n, most):
    records = [Record(id=str(i), prompt=prompt) for i, prompt in enumerate(PROMPTS[:n])]
    settings = Settings(Sampling(temperature=temperature, seed=1), max_tokens=most, raw=True)
    options = {"n_ctx": 256, "parallel": n // 2 + 1, "n_threads": 1, "n_threads_batch": 1}
    with Batch(smollm2, settings=settings, exact=True, **options) as batch:
        whole = {result.id: result.text for result in batch.run(records)}
        for left in (records[::-1], records[n // 2 + 1 :] + records[1:2], records[-1:]):
            for result in batch.run(left):
                assert result.text == whole[result.id]


def test_every_decode_of_answers_has_as_many_rows(open_batch, work):
    batch = open_batch(exact=True, parallel=3, n_ctx=1024, max_tokens=5)
    records = ["x" * 700 + word for word in ("a", "bc", "def")] + ["short"]
    assert [result.error for result in batch.run(records)] == [None] * 4
    answering = [each for each in work if any(drafted == 0 for _, _, drafted in each)]
    assert {len(each) for each in answering} == {4}
    assert all(drafted == 0 for each in answering for _, _, drafted in each)
    reading = [each for each in work if each not in answering]
    assert all(len(each) == 1 for each in reading)
    assert {n for each in reading for _, n, _ in each} <= {256, 700 - 512, 701 - 512, 702 - 512, 4}
    assert sum(n for each in reading for _, n, _ in each) < 4 * 700 - 1000


def test_exactness_is_part_of_what_answers_depend_on(open_batch):
    """A journal of an exact run is not continued by another one, nor with another number of rows."""
    runs = [open_batch(exact=exact, parallel=n) for exact, n in ((True, 4), (True, 8), (False, 4))]
    assert len({str(batch.identity().get("exact")) for batch in runs}) == 3


@pytest.mark.parametrize(("n_ctx", "most"), [
    (17, 2000), (64, 2000), (300, 2000), (1000, 2000), (64, None), (64, -1),
])  # fmt: skip
@pytest.mark.parametrize("parallel", [1, 8])
def test_context_of_any_size_is_filled_to_its_end(open_batch, n_ctx, most, parallel):
    """llama.cpp rounds contexts up to 256; a record may use what was asked for, and says that it was cut."""
    batch = open_batch(n_ctx=n_ctx, max_tokens=most, parallel=parallel)
    prompts = ["abc", "x" * (n_ctx - 3), "y" * n_ctx, "z" * (n_ctx + 1)]
    found = sorted(batch.run(prompts), key=lambda result: result.index)
    assert [result.finish_reason for result in found] == ["context"] * 3 + [None]
    assert [result.usage.total_tokens for result in found[:3]] == [n_ctx + 1] * 3
    assert all(result.text for result in found[:3])
    assert found[3].error.type == "ContextOverflow"


@pytest.mark.parametrize("most", ["5", 2.5, -2])
def test_a_limit_that_is_no_number_of_tokens_is_refused_at_once(most):
    with pytest.raises(OptionError, match="max_tokens"):
        Settings(max_tokens=most)


def test_an_answer_alone_is_a_batch_of_one(tiny_target, open_batch, work):
    prompt = list(range(4, 32)) * 20
    batch = open_batch(exact=True, parallel=1, n_ctx=1024)
    (said,) = batch.run([Record(id="a", tokens=prompt, max_tokens=9)])
    of_batch, work[:] = list(work), []
    with SpeculativeLlama(str(tiny_target), draft="none", n_ctx=1024) as llm:
        whole = llm.create_completion(prompt, max_tokens=9, temperature=0.0)
    assert of_batch[:3] == [[(0, 256, -1)], [(0, 256, -1)], [(0, len(prompt) - 513, -1)]]
    assert work[: len(of_batch)] == of_batch
    assert whole["choices"][0]["text"] == said.text
