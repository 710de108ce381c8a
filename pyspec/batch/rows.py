"""What rows go into a decode: prompt tokens that ride beside answers, and the room left for drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.batch.contexts import Contexts

FILL_ROWS = 128
"""Prompt tokens that ride in a batch with answers: enough for the matrix kernels, few enough that answers go on."""

COUPLED_ROWS = 64
"""The same with a coupled draft, whose target gives logits for every row: they take n_vocab floats each."""


EXACT_CHUNK = 256
"""Prompt tokens of a decode where texts have to be exact: pieces end at its multiples."""


def fill_rows(contexts: Contexts, n_answering: int) -> int:
    """Prompt tokens that the next decode takes."""
    most = COUPLED_ROWS if contexts.coupled else FILL_ROWS
    if n_answering:
        return min(most, contexts.answering_rows - n_answering)
    return min(most, contexts.n_batch) if contexts.coupled else contexts.n_batch


def draft_rows(contexts: Contexts, n_answering: int, filled: int) -> int:
    """Drafted tokens that each of `n_answering` sequences may have beside `filled` prompt tokens."""
    if contexts.layout.each and n_answering > contexts.few:
        return 0  # unequal rows of streams fall apart into several passes
    return max(0, (contexts.answering_rows - filled) // n_answering - 1)


def read_piece(reading: Sequence[tuple[int, int]], held: int) -> list[tuple[int, int]]:
    """The next piece of the first prompt, of which `held` tokens were read."""
    return [(seq, min(missing, EXACT_CHUNK - held % EXACT_CHUNK)) for seq, missing in reading[:1]]


def read_one(reading: Sequence[tuple[int, int]], budget: int, beside: int) -> list[tuple[int, int]]:
    """`share_rows` for streams: one prompt at a time; beside answers, the other prompts get a row each.

    Equal rows of sequences whose numbers follow each other go through together: no number may be missing.
    """
    if not reading or budget < 1:
        return []
    (first, missing), others = reading[0], reading[1:] if beside else []
    return [(first, max(1, min(missing, budget - len(others)))), *((seq, 1) for seq, _ in others)]


def share_rows(reading: Sequence[tuple[int, int]], budget: int) -> list[tuple[int, int]]:
    """Share `budget` rows among sequences that read, given as (sequence, tokens missing), longest waiting first.

    The first one has a quarter for certain; the rest goes to those with the least left.
    """
    if not reading or budget < 1:
        return []
    first, missing = reading[0]
    given = {first: min(missing, max(1, budget // 4))}
    budget -= given[first]
    for seq, left in sorted(reading, key=lambda item: item[1]):
        more = min(budget, left - given.get(seq, 0))
        if more > 0:
            given[seq] = given.get(seq, 0) + more
            budget -= more
    return list(given.items())
