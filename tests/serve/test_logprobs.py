"""Log-probabilities of text completions: where tokens stand in the text, and which of equal ones is meant."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspec.requests.records import COMPLETION
from pyspec.serve.pending import LogprobWriter
from pyspec.text.parts import Source, Token, TokenLogprobs

PIECES = [b"a", "\u2603".encode()[:1], "\u2603".encode()[1:], b"bc", b"", b"a"]


def likely(ids: list[int], top: list[tuple[int, float]] | None = None) -> list[tuple[Token, TokenLogprobs | None]]:  # fmt: skip
    return [(Token(i, Source.TARGET, 0.0, i), TokenLogprobs(-1.0, top or [(i, -1.0)])) for i in ids]


def writer() -> LogprobWriter:
    return LogprobWriter(COMPLETION, PIECES.__getitem__)


def test_a_split_character_counts_once() -> None:
    assert writer().write(likely([0, 1, 2, 3, 0]))["text_offset"] == [0, 1, 1, 2, 4]


@given(ids=st.lists(st.integers(0, 5)), cut=st.integers(0, 20))
def test_a_stream_has_the_offsets_of_the_whole(ids: list[int], cut: int) -> None:
    """They do not begin anew in each chunk, and never go back."""
    streamed = writer()
    found = [streamed.write(likely(part))["text_offset"] for part in (ids[:cut], ids[cut:])]
    whole = writer().write(likely(ids))["text_offset"]
    assert [*found[0], *found[1]] == whole
    assert all(a <= b for a, b in pairwise(whole))


def test_of_two_tokens_of_one_text_the_likelier_is_told() -> None:
    """Whichever comes first, and halves of characters are told apart by their bytes."""
    top = [(5, -0.5), (0, -3.0), (1, -4.0), (2, -5.0)]
    told = writer().write(likely([5], top))
    assert told["top_logprobs"] == [{"a": -0.5, "bytes:\\xe2": -4.0, "bytes:\\x98\\x83": -5.0}]
    assert writer().write(likely([0], top[::-1]))["top_logprobs"][0]["a"] == -0.5
