"""The model over llama.cpp that answers a chat's questions."""

from contextlib import closing

import pytest
from helpers import scripted
from helpers.answers import counters
from helpers.programs import pulled

from pyspec.chat.dialogue import Conversation, Exchange
from pyspec.chat.talk import LlamaChat
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.engine.profiles import PairMemory
from pyspec.errors import ModelNotFound
from pyspec.llama.speculative import OFF, SpeculativeLlama
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Strict
from pyspec.text.messages import Message

GREEDY = Sampling(temperature=0.0)


QUESTION = [Exchange("Write the numbers from one to twenty.")]


@pytest.fixture(scope="module")
def target(smollm2):
    how = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1}

    def opened(draft="lookup", companion="none"):
        return SpeculativeLlama(smollm2, draft=draft, companion=companion, **how)

    model = LlamaChat(opened)
    yield model
    model.close()


def ask(model, conversation, most):
    prompt = model.prompt(conversation.messages())
    return prompt, AnswerOptions(GREEDY, Speculation(verification=Strict()), most)


def raw(model, text, *options):
    """All pieces of an answer to a text, greedy, which is no chat."""
    asked = AnswerOptions(GREEDY, *options) if options else AnswerOptions(GREEDY, max_tokens=4)
    return list(model.answer(model.llm.tokenize(text), asked, chat=False))


def joined(pieces):
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(("pieces", "cancel"), [
    (4, lambda target: setattr(target, "_cancelled", True)), # the engine clears its flag where a call begins
    (0, LlamaChat.cancel), # between the question and the first round
    (1, LlamaChat.cancel),
])  # fmt: skip
def test_a_cancel_is_not_lost_whenever_it_comes(target, pieces, cancel):
    answer = target.answer(*ask(target, Conversation(None, QUESTION), 60))
    said = [next(answer) for _ in range(pieces)]
    cancel(target)
    said += answer
    assert said[-1].finish_reason == "cancelled"
    assert sum(len(piece.tokens) for piece in said) < 60
    assert target.stats["rounds"] >= (pieces > 0)


def test_a_draft_that_cannot_be_found_leaves_the_former(target):
    with pytest.raises(ModelNotFound):
        target.use(draft="nothing-of-that-name")
    assert target.draft == "lookup"
    assert joined(list(target.answer(*ask(target, Conversation(None, QUESTION), 4))))


def test_what_was_learned_is_kept_where_a_model_is_changed(open_llama, tiny_ascii, monkeypatch):
    kept: list[str] = []
    monkeypatch.setattr(PairMemory, "keep", lambda self: kept.append(self.draft_asked))

    def opened(draft="lookup"):
        llm = open_llama(tiny_ascii, draft=draft)
        llm.pair_memory.draft_asked = draft
        return llm

    with closing(LlamaChat(opened)) as model:
        raw(model, b"abc")
        model.use(draft="none")
        assert (model.draft, model.stats) == ("none", None)
        assert kept == ["lookup"]


def test_a_model_is_asked_not_to_think(open_llama, tmp_path):
    path = scripted.write(tmp_path, behind=scripted.THINKS)
    with closing(LlamaChat(lambda **_: open_llama(path))) as model:
        turns = [Message(role="user", content="x")]
        assert model.llm.speech.start(model.prompt(turns)) == "inside"
        model.thinking = False
        assert model.llm.speech.start(model.prompt(turns)) == "behind"


def test_models_of_ollamas_are_called_by_their_names(tiny_target, tiny_draft, tmp_path):
    """In what is said of them, in the block of statistics and in saved chats: their files are called after hashes."""
    target = pulled(tmp_path, "toy:8b", model=tiny_target.read_bytes())
    draft = pulled(tmp_path, "toy:1b", model=tiny_draft.read_bytes())
    with closing(LlamaChat(lambda: SpeculativeLlama(target, draft=str(draft), **HOW))) as model:
        assert (model.name, model.target().name, model.draft) == ("toy:8b", "toy:8b", "toy:1b")
        assert dict(model.describe())["target"] == "toy:8b"
        assert [each.name for each in model.llm.assembly.placed] == ["toy:1b"]
        raw(model, b"abcabc")
        assert model.stats["draft"] == "toy:1b"


HOW = {"n_ctx": 256, "n_threads": 1, "trust": True, "verbose": False}


@pytest.fixture
def tiny(tiny_ascii):
    with closing(
        LlamaChat(lambda **_: SpeculativeLlama(str(tiny_ascii), draft="none", **HOW))
    ) as model:
        yield model


def test_a_conversation_that_gave_way_is_not_read_again(tiny):
    texts = (b"ann went to the sea alone", b"bob stayed here all day")
    told = [joined(raw(tiny, text, OFF, 6)) for text in texts]
    before = counters(tiny.llm.assembly.engine).rows[0]
    assert [joined(raw(tiny, text, OFF, 6)) for text in texts] == told
    assert counters(tiny.llm.assembly.engine).rows[0] - before <= 2 * 7
