"""What llama.cpp is asked for reaches the contexts of a batch, and system prompt its prompts."""

import pytest

from pyspec.batch import Settings, run
from pyspec.engine import contexts
from pyspec.errors import NoMemory, OptionError
from pyspec.requests.records import Record

F32 = 0


def test_types_and_batches_are_those_asked_for(open_batch, tiny_draft):
    asked = {"type_k": F32, "type_v": F32, "n_batch": 700, "n_ubatch": 100}
    asked["rope_freq_base"] = 5000.0
    batch = open_batch(draft=tiny_draft, draft_type_k=F32, **asked)
    assert [result.error for result in batch.run(["ab", "cd"])] == [None] * 2
    assert {name: getattr(batch.target.context_params, name) for name in asked} == asked
    assert batch.stats()["drafted"] > 0
    with pytest.raises(OptionError, match="draft_type_k"):
        open_batch(draft_type_k=10**6)
    with pytest.raises(TypeError, match="no argument 'verification'"):
        open_batch(verification="margin")


@pytest.fixture
def worth_16(monkeypatch):
    monkeypatch.setattr(run, "best_parallel", lambda _: 16)


def test_answers_at_once_are_bound_by_memory(open_batch, worth_16, monkeypatch, caplog):
    monkeypatch.setattr(run, "memory_for", lambda *_: 1)
    batch = open_batch(parallel=None)
    assert [result.error for result in batch.run(["ab"] * 20)] == [None] * 20
    assert batch.stats()["parallel"] == 8
    assert "16 answers at once; 8" in caplog.text


def refuse_from(monkeypatch, most):
    make, asked = contexts.internals.LlamaContext, []

    def limited(*, params, **more):
        asked.append(params.n_seq_max)
        if params.n_seq_max > most:
            raise ValueError("Failed to create llama_context")
        return make(params=params, **more)

    monkeypatch.setattr(contexts.internals, "LlamaContext", limited)
    return asked


@pytest.mark.parametrize("drafts", [False, True])
def test_contexts_that_memory_does_not_hold_are_halved(
    open_batch, worth_16, monkeypatch, tiny_draft, drafts
):
    batch = open_batch(parallel=None, draft=tiny_draft if drafts else "none")
    asked = refuse_from(monkeypatch, 4)
    assert [result.error for result in batch.run(["ab"] * 20)] == [None] * 20
    assert (batch.parallel, asked[:3]) == (4, [16, 8, 4])
    batch = open_batch(parallel=16)  # a number that was asked for is kept
    with pytest.raises(NoMemory, match="--parallel"):
        [*batch.run(["ab"] * 20)]


def test_options_that_change_texts_are_part_of_the_identity(open_batch):
    """So that a journal does not go on with another kind of cache; threads are none of them."""
    plain, other = open_batch(), open_batch(type_k=F32, n_threads=2)
    assert other.identity() == {**plain.identity(), "type_k": F32}


MESSAGES = [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize(("messages", "told"), [
    (MESSAGES, True),
    ([{"role": "system", "content": "own"}, *MESSAGES], False),
    ([{"role": "developer", "content": "own"}, *MESSAGES], False),
])  # fmt: skip
def test_system_text_is_for_messages_that_bring_none(open_batch, tmp_path, messages, told):
    said, template = "be brief", tmp_path / "template.jinja"
    template.write_text("{% for turn in messages %}{{ turn.content }} {% endfor %}")
    batch = open_batch(settings=Settings(system=said, max_tokens=4), chat_template=str(template))
    plain = open_batch(settings=Settings(max_tokens=4), chat_template=str(template))
    wanted = [{"role": "system", "content": said}, *messages] if told else messages
    record = Record(id="0", messages=messages)
    same = plain.maker.answer(0, Record(id="0", messages=wanted))
    assert batch.maker.answer(0, record).tokens == same.tokens
