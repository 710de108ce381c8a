"""Drafters in Python: llama-cpp-python's draft models, prompt lookup against a slow twin, and drafts through text."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from answers import ask
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from texts import slow_draft

from pyspec.drafters import (
    DraftedText,
    Drafter,
    ForeignDrafter,
    LookupDrafter,
    spread,
    translate,
)
from pyspec.llama import SpeculativeLlama
from pyspec.sampling import Sampling


def test_ids_come_through():
    """The model gets the text as an array of C ints and its answer becomes plain ints."""
    seen = []

    def model(ids):
        seen.append((ids.dtype, ids.tolist()))
        return np.array([4, 5, 6], dtype=np.intc)

    proposal = ForeignDrafter(model).propose(0, [1, 2, 3], 10)
    assert seen == [(np.dtype(np.intc), [1, 2, 3])]
    assert proposal.tokens == [4, 5, 6]
    assert all(type(token) is int for token in proposal.tokens)


def test_more_than_asked_is_cut():
    """Such models do not know the limit."""
    assert ForeignDrafter(lambda _ids: np.arange(9)).propose(0, [1], 4).tokens == [0, 1, 2, 3]


def test_prompt_lookup_of_llama_cpp_python():
    """Its own prompt lookup drafts through the wrapper and lends it its name."""
    drafter = ForeignDrafter(LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=3))
    assert drafter.name == "LlamaPromptLookupDecoding"
    assert drafter.propose(0, [1, 2, 3, 4, 1, 2], 3).tokens == [3, 4, 1]


def test_drafter_is_abstract():
    """A drafter without propose() cannot be made."""
    with pytest.raises(TypeError):
        Drafter()


def test_hearing_is_optional():
    """observe() does nothing unless a drafter wants to hear."""
    assert ForeignDrafter(lambda ids: ids).observe(0, [1], 1, 1) is None


texts = st.lists(st.integers(0, 3), max_size=60)


@given(texts, st.integers(1, 20))
def test_draft_is_the_slow_twins(text, limit):
    """Drafted tokens are the slow twin's, for every limit."""
    proposal = LookupDrafter().propose(0, text, limit)
    wanted = slow_draft([text], text, limit)
    assert (list(proposal.tokens), proposal.match_length) == wanted[:2]


@given(texts, texts, st.integers(0, 40))
def test_growing_and_replaced_texts_draft_as_fresh_ones(first, second, shared):
    """A drafter that saw another text before, or a shorter one, drafts as one that saw this text only."""
    drafter = LookupDrafter()
    drafter.propose(0, first, 5)
    other = first[:shared] + second
    assert drafter.propose(0, other, 5) == LookupDrafter().propose(0, other, 5)
    grown = other + second
    assert drafter.propose(0, grown, 5) == LookupDrafter().propose(0, grown, 5)


def test_text_that_grows_in_place_is_followed():
    """The loop's own list grows between proposals: only what is new is indexed."""
    drafter, text = LookupDrafter(), [1, 2, 3, 4]
    drafter.propose(0, text, 4)
    text += [5, 2, 3]
    assert list(drafter.propose(0, text, 2).tokens) == [4, 5]


def test_replaced_text_with_the_same_tail_is_noticed():
    """A text of the same length with the same last tokens is another text."""
    drafter = LookupDrafter()
    drafter.propose(0, [7, 8, 9, 1, 2, 3, 4], 4)
    assert list(drafter.propose(0, [5, 6, 5, 1, 2, 3, 4, 5, 6], 2).tokens) == [5, 1]


def test_sequences_are_kept_apart():
    """Each sequence has an index of its own."""
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    assert not drafter.propose(1, [1, 2], 3).tokens
    assert list(drafter.propose(0, [1, 2, 3, 1, 2], 1).tokens) == [3]


def test_forgotten_sequence_starts_anew():
    """begin() drops what is known of one sequence."""
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    drafter.begin(0)
    assert list(drafter.propose(0, [4, 5, 6, 4, 5], 1).tokens) == [6]


def test_repetition_goes_on_with_itself():
    """Past the end of the text the repeated stretch is drafted again."""
    assert list(LookupDrafter().propose(0, [1, 2, 1, 2, 1, 2], 5).tokens) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3]])
def test_nothing_to_draft(text):
    """Without a repetition nothing is proposed."""
    assert LookupDrafter().propose(0, text, 5).tokens == ()


def test_no_room_no_draft():
    """A limit of 0 proposes nothing."""
    assert LookupDrafter().propose(0, [1, 2, 1, 2], 0).tokens == ()


PROMPT = [tiny.A + n for n in (0, 3, 1, 4, 1, 5, 9, 2, 6)]

VOCABULARY = [
    b"",
    *(bytes([n]) for n in range(256)),
    b"th",
    b"the",
    b" the",
    b"he",
    b" w",
    b"or",
    b"world",
]


def tokenize(text: bytes) -> list[int]:
    """Longest match first, as a vocabulary of bytes and some words would."""
    ids, at = [], 0
    while at < len(text):
        token = max(
            (n for n, piece in enumerate(VOCABULARY) if piece and text.startswith(piece, at)),
            key=lambda n: len(VOCABULARY[n]),
        )
        ids.append(token)
        at += len(VOCABULARY[token])
    return ids


def piece(token: int) -> bytes:
    """Bytes of a token."""
    return VOCABULARY[token]


@given(
    st.text(string.ascii_lowercase + " ", max_size=20),
    st.text(string.ascii_lowercase + " é", min_size=1),
)
def test_what_is_proposed_says_what_the_draft_said(before: str, text: str) -> None:
    """Joined, the ids are the draft's text, however the words are cut."""
    ids = translate(text.encode(), tokenize(before.encode())[-2:], piece, tokenize)
    assert b"".join(map(piece, ids)) == text.encode()


def test_words_are_cut_as_the_target_cuts_them() -> None:
    """Where the committed text ends inside a word of the target's, the rest of that word is what follows."""
    assert translate(
        b"e world", [VOCABULARY.index(b" "), VOCABULARY.index(b"th")], piece, tokenize
    ) == tokenize(b"e world")
    assert translate(b" the", [VOCABULARY.index(b"a")], piece, tokenize) == [
        VOCABULARY.index(b" the")
    ]


def test_a_space_that_the_tokeniser_adds_is_left_out() -> None:
    """Some tokenisers begin every text with a space; the draft did not say it."""
    ids = translate(b"or", [], piece, lambda text: [VOCABULARY.index(b" "), *tokenize(text)])
    assert b"".join(map(piece, ids)) == b"or"


def test_a_text_that_cannot_be_said_is_cut() -> None:
    """Tokens that say something else are no draft."""
    wrong = VOCABULARY.index(b"he")
    assert translate(b"or", [], piece, lambda _text: [VOCABULARY.index(b"or"), wrong]) == [
        VOCABULARY.index(b"or")
    ]
    assert translate(b"or", [], piece, lambda _text: [wrong]) == []


def test_probabilities_follow_the_text() -> None:
    """Each of the draft's tokens counts where it begins; what it spans is sure."""
    said = DraftedText([b"the", b" w", b"orld"], [0.5, 0.8, 0.5])
    p = spread(said, [2, 1, 6])
    assert p == pytest.approx([0.5, 1.0, 0.4])


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.data())
def test_no_probability_is_lost(p: list[float], data: st.DataObject) -> None:
    """However the text is cut again, the product over all of it is the draft's."""
    pieces = [data.draw(st.binary(min_size=1, max_size=5)) for _ in p]
    total = sum(map(len, pieces))
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    product = 1.0
    for x in spread(DraftedText(pieces, p), sizes):
        product *= x
    wanted = 1.0
    for x in p:
        wanted *= x
    assert product == pytest.approx(wanted)


@pytest.fixture
def other(tiny_folder: Path) -> Path:
    """A model of the tiny target's letters in another order, and with more of them."""
    tokens = [*tiny.TOKENS[:3], *reversed(tiny.LETTERS), "ab", "cd"]
    return tiny.write(tiny_folder / "letters.gguf", tokens=tokens, seed=4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_strict_text_is_the_targets(
    open_llama: Callable[..., SpeculativeLlama], tiny_target: Path, other: Path, temperature: float
) -> None:
    """At every temperature, with a draft that is wrong at most places."""
    sampling = Sampling(temperature=temperature, seed=3)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    llm = open_llama(tiny_target, draft=other)
    assert ask(llm, PROMPT, 60, sampling).ids == plain.ids
    assert llm.last_speculation["draft"] == "letters (translated)"
    assert llm.last_speculation["drafted"] > 0


def test_a_draft_that_thinks_alike_is_accepted(
    open_llama: Callable[..., SpeculativeLlama], tiny_target: Path, tmp_path: Path
) -> None:
    """The target's own weights under another end token: what comes back through text is what the target says."""
    twin = tiny.write(tmp_path / "twin.gguf", eos=7)
    llm = open_llama(tiny_target, draft=twin)
    ask(llm, PROMPT, 60)
    block = llm.last_speculation
    assert block["drafted"] > 0
    assert block["accepted"] == block["verified"] > 0


def test_lookup_goes_in_front(
    open_llama: Callable[..., SpeculativeLlama], tiny_target: Path, other: Path
) -> None:
    """`lookup+NAME` drafts from the text where it repeats, and by the model elsewhere."""
    llm = open_llama(tiny_target, draft=f"lookup+{other}")
    plain = ask(open_llama(tiny_target), PROMPT, 60)
    assert ask(llm, PROMPT, 60).ids == plain.ids
    assert llm.last_speculation["draft"] == "lookup+letters (translated)"
