"""Which prompt tokens go into a decode, for one sequence or shared among several that are being read."""

from __future__ import annotations

from collections.abc import Sequence

PREFILL_CHUNK = 256
"""Prompt tokens per decode: few enough for progress and cancelling, enough for the matrix kernels."""


def next_chunk(reading: Sequence[tuple[int, int]], held: int) -> list[tuple[int, int]]:
    """The next piece of the first prompt, of which `held` tokens were read; pieces end at multiples of the chunk."""
    return [
        (seq, min(missing, PREFILL_CHUNK - held % PREFILL_CHUNK)) for seq, missing in reading[:1]
    ]


def share_in_streams(
    reading: Sequence[tuple[int, int]], budget: int, beside: int
) -> list[tuple[int, int]]:
    """`share_rows` for streams: reads one prompt at a time; beside answers, the other prompts get a row each.

    Equal rows of consecutively numbered sequences are decoded together, so no number may be missing.
    """
    if not reading or budget < 1:
        return []
    (first, missing), others = reading[0], reading[1:] if beside else []
    return [(first, max(1, min(missing, budget - len(others)))), *((seq, 1) for seq, _ in others)]


def share_rows(reading: Sequence[tuple[int, int]], budget: int) -> list[tuple[int, int]]:
    """Share `budget` rows among sequences being read, given as (sequence, tokens missing), longest waiting first.

    The first one is sure of a quarter; the rest goes to those with the least left.
    """
    if not reading or budget < 1:
        return []
    first, missing = reading[0]
    shares = {first: min(missing, max(1, budget // 4))}
    budget -= shares[first]
    for seq, left in sorted(reading, key=lambda item: item[1]):
        more = min(budget, left - shares.get(seq, 0))
        if more > 0:
            shares[seq] = shares.get(seq, 0) + more
            budget -= more
    return list(shares.items())
