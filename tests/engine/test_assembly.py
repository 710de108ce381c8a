"""From what the user named to what drafts, and vocabularies that do not match."""

import llama_cpp
import pytest
from helpers import tiny
from helpers.answers import Scripted, ask
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from pyspec.draft.lookup import ForeignDrafter, LookupDrafter
from pyspec.engine import models
from pyspec.engine.assembly import choose_parts
from pyspec.errors import DraftMismatch, EngineError, ModelError, ModelInvalid
from pyspec.errors import ModelNotFound as Missing
from pyspec.errors import ModelUnreadable as Unreadable
from pyspec.llama.speculative import SpeculativeLlama

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]


@pytest.fixture
def target(open_plain, tiny_target):
    """A target whose file no manifest knows."""
    return open_plain(tiny_target)


# -- what is chosen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("draft", "companion", "drafter", "file", "names"), [
    ("none", "auto", type(None), False, ("none", "none")),
    ("lookup", "auto", LookupDrafter, False, ("lookup", "none")),
    ("FILE", "none", type(None), True, ("draft", "none")),
    ("lookup+FILE", "none", LookupDrafter, True, ("lookup+draft", "none")),
    # no shipped draft fits a model that nobody knows
    ("auto", "auto", LookupDrafter, False, ("lookup", "none")),
    (LlamaPromptLookupDecoding(), "auto", ForeignDrafter, False, ("LlamaPromptLookupDecoding", "none")),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_what_a_word_or_an_object_chooses(target, tiny_draft, draft, companion, drafter, file, names):  # fmt: skip
    given = draft.replace("FILE", str(tiny_draft)) if isinstance(draft, str) else draft
    parts = choose_parts(target, given, companion)
    assert type(parts.drafter) is drafter
    assert (parts.draft, parts.companion) == (tiny_draft if file else None, None)
    assert parts.names == names
    own = Scripted(lambda _tokens, _limit: [])
    assert choose_parts(target, own, "auto").drafter is own


JUDGED = [("lookup", "not used"), ("FILE", "nothing to add"), ("LINK", "nothing to add")]


@pytest.mark.parametrize(("draft", "said"), JUDGED)
def test_a_companion_that_has_nothing_to_judge_is_left_out(target, tiny_draft, tmp_path, draft, said):  # fmt: skip
    """Without a draft model, or where it is that model itself, by whatever name; a note says so."""
    link = tmp_path / "other.gguf"
    link.symlink_to(tiny_draft)
    drafts = draft if draft == "lookup" else str(tiny_draft)
    parts = choose_parts(target, drafts, str(link if draft == "LINK" else tiny_draft))
    assert parts.companion is None
    assert said in parts.notes[0]


# -- what is loaded ----------------------------------------------------------------------------------------------------


def tokens_of(side):
    vocabulary = llama_cpp.llama_model_get_vocab(side._model.model)
    return llama_cpp.llama_vocab_type(vocabulary), llama_cpp.llama_vocab_n_tokens(vocabulary)


def test_a_draft_of_the_targets_tokens_brings_no_tokenizer(target, tiny_draft):
    """The files say that the tokens are the same, and reading them again is most of a small draft's load."""
    side = models.SideModel(tiny_draft, target)
    assert tokens_of(side) == (llama_cpp.LLAMA_VOCAB_TYPE_NONE, target.n_vocab())
    side.close()


# -- what cannot be used -----------------------------------------------------------------------------------------------


def swapped(tokens, i, j):
    tokens = list(tokens)
    tokens[i], tokens[j] = tokens[j], tokens[i]
    return tokens


MISMATCHES = {
    "its tokens": {"tokens": swapped(tiny.TOKENS, 9, 14)},
    "token after a text": {"eos": 7, "adds": (False, True)},
    "its number of tokens": {"tokens": [*tiny.TOKENS, *(f"t{i}" for i in range(200))]},
}


@pytest.mark.parametrize("role", ["draft", "companion"])
@pytest.mark.parametrize("named", MISMATCHES)
def test_another_vocabulary_is_refused(open_llama, tiny_target, tiny_draft, tmp_path, named, role):
    other = tiny.write(tmp_path / "other.gguf", **MISMATCHES[named])
    with pytest.raises(DraftMismatch, match=named) as caught:
        open_llama(tiny_target, **{"draft": tiny_draft, role: other})
    assert "other.gguf" in caught.value.message
    assert "--draft none" in caught.value.hint


def test_padded_vocabulary_is_accepted(open_llama, tiny_target, tmp_path):
    """A family pads its vocabularies differently: a few more tokens at the end do no harm."""
    more = [f"<pad{i}>" for i in range(20)]
    padded = tiny.write(tmp_path / "padded.gguf", tokens=[*tiny.TOKENS, *more])
    for target, draft in ((tiny_target, padded), (padded, tiny_target)):
        llm = open_llama(target, draft=draft)
        assert ask(llm, PROMPT).ids == ask(open_llama(target), PROMPT).ids
    assert llm.last_speculation["drafted"] > 0


@pytest.mark.parametrize(("make", "error"), [
    (lambda _path, _whole: None, Missing), (lambda path, _whole: path.mkdir(), Unreadable),
    (lambda path, _whole: path.write_bytes(b"junk, not a model"), ModelError),
    (lambda path, _whole: path.write_bytes(b""), ModelError),
    (lambda path, whole: path.write_bytes(whole[:-5000]), ModelInvalid),
])  # fmt: skip
def test_draft_that_is_no_model(open_llama, tiny_target, tmp_path, make, error):
    path = tmp_path / "x.gguf"
    make(path, tiny_target.read_bytes())
    with pytest.raises(error, match=r"x\.gguf"):
        open_llama(tiny_target, draft=path)
    with pytest.raises(Missing):
        open_llama(tiny_target, draft="no-such-draft")


def test_no_room_for_a_draft_is_said(target, tiny_draft, monkeypatch):

    def refuse(**_):
        raise ValueError("Failed to create llama_context")

    monkeypatch.setattr(models.internals, "LlamaContext", refuse)
    with pytest.raises(EngineError, match="no memory for a context"):
        models.SideModel(tiny_draft, target)


def test_a_refused_draft_leaves_no_target(tiny_target, tmp_path):
    """Whoever keeps the exception does not keep the model: it is closed at once."""
    with pytest.raises(ModelError) as error:
        SpeculativeLlama(str(tiny_target), draft=str(tmp_path / "missing.gguf"), n_threads=1)
    frames = [entry.frame.f_locals.get("self") for entry in error.traceback]
    (llm,) = {id(found): found for found in frames if isinstance(found, SpeculativeLlama)}.values()
    with pytest.raises(EngineError, match="closed"):
        llm.tokenize(b"a")


def test_ids_that_a_draft_lacks_end_no_draft(open_llama, tmp_path):
    more = [*tiny.TOKENS, *(f"[PAD{i}]" for i in range(9))]
    target = tiny.write(tmp_path / "more.gguf", n_layer=4, tokens=more)
    draft = tiny.write(tmp_path / "fewer.gguf", n_layer=1)
    prompt = [*PROMPT, tiny.A, tiny.N_VOCAB + 4, tiny.A, tiny.N_VOCAB + 8, tiny.A + 1]
    llm = open_llama(target, draft=draft, length="fixed:3")
    assert ask(llm, prompt, 30).ids == ask(open_llama(target), prompt, 30).ids
    assert llm.last_speculation["drafted"] > 20
    assert not llm.session.loop.failed
