"""Words that are single tokens: where they are in a text, and where its neighbours could complete one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.text.prompts import Words

TEXTS = st.text("<|a]", max_size=6)
WORDS = st.lists(st.text("<|a]", min_size=1, max_size=4), max_size=5, unique=True)


@given(words=WORDS, text=TEXTS)
def test_neighbours_that_could_complete_a_word_are_known(words: list[str], text: str) -> None:
    """Behind a text that ends with a word's first part, and before one that begins with two characters of its last."""
    behind = any(
        text[n:] != word and word.startswith(text[n:]) for word in words for n in range(len(text))
    )
    before = any(
        text[:n] != word and word.endswith(text[:n]) for word in words for n in range(2, len(text) + 1)
    )  # fmt: skip
    made = Words({word: n for n, word in enumerate(words)})
    assert made.joins(text) == [len(text)] * behind + [0] * before


@given(words=WORDS, text=TEXTS)
def test_the_longest_word_is_found_at_each_place(words: list[str], text: str) -> None:
    at = ((n, [word for word in words if text.startswith(word, n)]) for n in range(len(text)))
    wanted = [(n, max(found, key=len)) for n, found in at if found]
    assert Words({word: n for n, word in enumerate(words)}).found_in(text) == wanted
