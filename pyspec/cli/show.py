"""How answers, tokens and statistics look on a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from pyspec.tokens import Source, Token

_STYLE: dict[Source, dict[str, Any]] = {
    Source.TARGET: {},
    Source.ACCEPTED: {"fg": "green"},
    Source.RELAXED: {"fg": "yellow", "bold": True},
}
_FRAME = {Source.TARGET: ("", ""), Source.ACCEPTED: ("[", "]"), Source.RELAXED: ("{", "}")}


def printable(text: str) -> str:
    """Text without what could drive a terminal: control and format characters but newline and tab are dropped."""
    return "".join(
        c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs")
    )


def token_line(tokens: Sequence[Token], piece: Callable[[int], bytes]) -> str:
    """The answer with each token's source: [accepted], {relaxed}, the rest the target's own; coloured too."""
    parts = []
    for token in tokens:
        before, after = _FRAME[token.source]
        text = printable(piece(token.id).decode("utf-8", "replace"))
        parts.append(click.style(before + text + after, **_STYLE[token.source]))
    legend = " ".join(click.style(a + s.label + b, **_STYLE[s]) for s, (a, b) in _FRAME.items())
    return "".join(parts) + "\n\n" + legend


def stats_line(speculation: Mapping[str, Any], timings: Mapping[str, float]) -> str:
    """One line: tokens, tokens/s, accepted/drafted, mean length, relaxed."""
    if not speculation:
        return "0 tokens"
    drafted, verified, accepted = (speculation[key] for key in ("drafted", "verified", "accepted"))
    tokens = round(speculation["rounds"] * speculation["mean_length"])
    parts = [
        f"{tokens} tokens",
        f"{timings['tokens_per_second']:.1f} tok/s",
        f"accepted {accepted}/{verified} verified, {drafted} drafted",
        f"mean length {speculation['mean_length']:.2f}",
        f"relaxed {speculation['relaxed']} ({speculation['relaxed_nats']:.2f} nats)",
        f"draft {speculation['draft']}",
    ]
    return " | ".join(parts)
