"""What llama.cpp is asked for reaches the contexts of a batch, and system text its prompts."""

from __future__ import annotations

import pytest

from pyspec.batch import Settings
from pyspec.batch.contexts import memory_for
from pyspec.batch.records import Record
from pyspec.engine.models import Placement
from pyspec.errors import OptionError

F32 = 0


def test_types_and_batches_are_those_asked_for(open_batch, tiny_draft):
    """Of the context for all sequences, and of the draft's."""
    batch = open_batch(
        draft=tiny_draft, type_k=F32, type_v=F32, draft_type_k=F32, n_batch=700, n_ubatch=100,
        rope_freq_base=5000.0,
    )  # fmt: skip
    assert [result.error for result in batch.run(["ab", "cd"])] == [None] * 2
    params = batch.target.context_params
    assert (params.type_k, params.type_v, params.n_batch, params.n_ubatch) == (F32, F32, 700, 100)
    assert params.rope_freq_base == 5000.0
    assert batch.stats()["drafted"] > 0


def test_larger_cells_leave_room_for_fewer_sequences(open_batch):
    """Twice the bytes, half the sequences."""
    plain, large = open_batch(), open_batch(type_k=F32, type_v=F32)
    assert memory_for(large.target, 4096) == memory_for(plain.target, 4096) // 2


def test_a_draft_takes_memory_of_its_own(open_batch, tiny_draft):
    """One of the target's shape as much as the target, one of F32 twice as much."""
    plain, drafting = open_batch(), open_batch(draft=tiny_draft)
    beside = drafting._models.beside(Placement())
    alone = memory_for(plain.target, 4096)
    assert memory_for(drafting.target, 4096, beside) == alone // 2
    assert drafting._models.beside(Placement(type_k=F32, type_v=F32)) == 2 * beside
    assert plain._models.beside(Placement()) == 0.0


def test_types_that_cannot_be_are_refused(open_batch):
    """Before the model is loaded."""
    with pytest.raises(OptionError, match="draft_type_k"):
        open_batch(draft_type_k=10**6)


def test_options_that_change_texts_are_part_of_the_identity(open_batch):
    """So that a journal does not go on with another kind of cache; threads are none of them."""
    plain, other = open_batch(), open_batch(type_k=F32, n_threads=2)
    assert other.identity() == {**plain.identity(), "type_k": F32}


MESSAGES = [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (MESSAGES, True),
        ([{"role": "system", "content": "own"}, *MESSAGES], False),
        ([{"role": "developer", "content": "own"}, *MESSAGES], False),
    ],
)
def test_system_text_is_for_messages_that_bring_none(open_batch, tmp_path, messages, told):
    """As for prompts."""
    said, template = "be brief", tmp_path / "template.jinja"
    template.write_text("{% for turn in messages %}{{ turn.content }} {% endfor %}")
    batch = open_batch(settings=Settings(system=said, max_tokens=4), chat_template=str(template))
    plain = open_batch(settings=Settings(max_tokens=4), chat_template=str(template))
    wanted = [{"role": "system", "content": said}, *messages] if told else messages
    record = Record(id="0", messages=messages)
    assert (
        batch.jobs.job(0, record).tokens
        == plain.jobs.job(0, Record(id="0", messages=wanted)).tokens
    )
