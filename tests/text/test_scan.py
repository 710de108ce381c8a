"""A text that arrives in pieces is read as if it were complete."""

from __future__ import annotations

import pytest

from pyspec.text.scan import MAX_NAME, Scanner


def until(text: str, pieces: int) -> tuple[str, str]:
    scanner, size = Scanner(), -(-len(text) // pieces)
    reading = scanner.until(("</x>",))
    for n in range(pieces + 1):
        scanner.ended = n == pieces
        scanner.feed(text[n * size : (n + 1) * size])
        try:
            next(reading)
        except StopIteration as done:
            return done.value
    raise AssertionError("it still waits for text")


@pytest.mark.parametrize("pieces", [1, 2, 3, 300])
def test_a_name_has_its_longest_length_however_it_arrives(pieces: int) -> None:
    longest = "n" * MAX_NAME
    assert until(f"{longest}</x>", pieces) == (longest, "</x>")
    assert until(f"{longest}nn</x>", pieces) == (f"{longest}n", "")
