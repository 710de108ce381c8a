"""A slow twin of the index of texts: it searches them anew for each token."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pyspec.draft.lookup import SHORTEST_MATCH

START = -1
"""Stands before each text, and nowhere else."""


def endings(known: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Each beginning of these texts once, in the order of their coming, with the mark of a text's start."""
    seen = set()
    for text in known:
        for n in range(1, len(text) + 1):
            beginning = (START, *text[:n])
            if beginning not in seen:
                seen.add(beginning)
                yield beginning


def followers(
    beginnings: Sequence[tuple[int, ...]], end: tuple[int, ...]
) -> tuple[Counter[int], dict[int, int]]:
    """How often each token followed this end, and when it last did."""
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    n = len(end)
    for when, beginning in enumerate(beginnings):
        if beginning[-1 - n : -1] == end:
            counts[beginning[-1]] += 1
            last[beginning[-1]] = when
    return counts, last


def slow_draft(
    known: Sequence[Sequence[int]], text: Sequence[int], limit: int
) -> tuple[list[int], int]:
    """Tokens that follow the longest known end of `text` most often, each time anew; that end's length."""
    beginnings = list(endings(known))
    grown = [START, *text]
    draft: list[int] = []
    match = 0
    while len(draft) < limit:
        for length in range(len(grown), SHORTEST_MATCH - 1, -1):
            counts, last = followers(beginnings, tuple(grown[len(grown) - length :]))
            matched = length - (length == len(grown))  # the mark is none of a text's tokens
            if not counts or matched < SHORTEST_MATCH:
                continue
            if not draft:
                match = matched
            draft.append(max(counts, key=lambda token: (counts[token], last[token])))
            grown.append(draft[-1])
            break
        else:
            break
    return draft, match
