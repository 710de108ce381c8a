"""Drafts of another vocabulary, through text: what is proposed, and that strict text stays the target's."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from answers import ask
from hypothesis import given
from hypothesis import strategies as st

from pyspec.drafters.translated import Said, spread, translate
from pyspec.llama import SpeculativeLlama
from pyspec.sampling import Sampling

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
    said = Said([b"the", b" w", b"orld"], [0.5, 0.8, 0.5], [1.0, 0.5, 0.25])
    p, entropy = spread(said, [2, 1, 6])
    assert p == pytest.approx([0.5, 1.0, 0.4])
    assert entropy == pytest.approx([1.0, 0.0, 0.75])


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.data())
def test_no_probability_is_lost(p: list[float], data: st.DataObject) -> None:
    """However the text is cut again, the product over all of it is the draft's."""
    pieces = [data.draw(st.binary(min_size=1, max_size=5)) for _ in p]
    total = sum(map(len, pieces))
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1)))) if total > 1 else []
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    product = 1.0
    for x in spread(Said(pieces, p, [0.0] * len(p)), sizes)[0]:
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
