"""The line of statistics that ends a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
