"""Text about answers: made safe for terminals, and with their statistics."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

_JOINERS = "\u200c\u200d"  # format characters that Persian and emoji need
_STEERING = ("Cc", "Cf", "Cs")
SAME = 0.05  # how far from 1 a factor may be and still count as the same speed
_RIGHT = 0.75  # share of correct checked tokens above which an undrafted text does not count as hard to predict


def safe(text: str) -> str:
    """Remove what could control a terminal.

    Drops control characters other than newline and tab (ESC and the C1 set among them), format characters such as bidirectional
    overrides, and lone surrogates.
    """
    kept = f"\n\t{_JOINERS}"
    return "".join(c for c in text if c in kept or unicodedata.category(c) not in _STEERING)


def counted(n: int, thing: str) -> str:
    """A number and what it counts, plural unless it is one."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def speed_sentence(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """Say how fast an answer came beside plain decoding, and why drafts did not help. block: a result's `speculation`."""
    if block.get("rounds") == 0:
        return "stopped before the first token"
    rate = f"{tokens_per_second:.{0 if tokens_per_second >= 100 else 1}f} tokens/s"
    if block.get("draft", "none") == "none":
        return f"{rate}, plain decoding"
    if not block.get("verified"):
        return f"{rate} (drafts off: {_undrafted(block)})"
    return f"{rate}{_against(block)}"


def _against(block: Mapping[str, Any]) -> str:
    """What drafts did for an answer with checked drafts."""
    factor, off = block.get("times_plain"), ""
    if factor is None:
        return ""
    plain = block.get("choice", {}).get("rounds_by_length", {}).get(0, 0)
    if (
        2 * plain > block["rounds"] * block["mean_length"]
    ):  # tokens of rounds without checked drafts
        hard, cheap = "this text is hard to predict", "checking them hardly pays off here"
        off = f"drafts off: {cheap if _right(block) else hard}"
    if factor <= 1 - SAME:
        slow = "drafts take too long here"
        why = off or (slow if _right(block) else "too many drafts were wrong")
        return f", slower than plain decoding ({factor:.2f} times; {why})"
    if factor < 1 + SAME:
        return f" ({off})" if off else ", as fast as plain decoding"
    return f", {factor:.{0 if factor >= 10 else 1}f} times plain decoding"


def _undrafted(block: Mapping[str, Any]) -> str:
    """Why no drafted token of an answer was checked."""
    if block.get("drafted"):
        return "none was likely enough to be right"
    one = block["rounds"] == 1
    return "there was only one token" if one else "they would not have paid off here"


def _right(block: Mapping[str, Any]) -> bool:
    """Whether most checked tokens were accepted."""
    return bool(block["accepted"] >= _RIGHT * block["verified"])


def stats_line(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """The counts of an answer in one line."""
    if not block:
        return "0 tokens"
    tokens = round(block["rounds"] * block["mean_length"])
    parts = [counted(tokens, "token"), f"{tokens_per_second:.1f} tokens/s"]
    if block["draft"] != "none":
        plain = block.get("plain")
        rate = f"{plain['tokens_per_second']:.1f} tokens/s" if plain else "not known"
        parts.append(f"plain {rate}")
    if block["drafted"]:
        parts.append("{drafted} drafted, {verified} checked, {accepted} accepted".format(**block))
        parts.append(f"{block['mean_length']:.2f} tokens a round")
    else:
        parts.append("nothing drafted")
    if block["relaxed"]:
        parts.append(f"{block['relaxed']} relaxed ({block['relaxed_nats']:.2f} nats)")
    parts.append(f"prompt {block['prompt_tokens']}, {block['prompt_kept']} kept")
    parts.append(f"draft {block['draft']}")
    return " | ".join(parts)


# -- for Python ----------------------------------------------------------------------------------------------------------


class SpeculationBlock(dict[str, Any]):
    """The `speculation` block of a result: a dict with a sentence about what drafts did."""

    @property
    def sentence(self) -> str:
        """How fast the answer came, compared with plain decoding."""
        if not (timings := self.get("timings")):
            return "nothing was decoded"
        return speed_sentence(self, timings["tokens_per_second"])


def plain(value: Any) -> Any:
    """Return nested lists and dicts with numpy's numbers as Python's: llama-cpp-python leaves some in logprobs."""
    if isinstance(value, SpeculationBlock):
        return value
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.item() if type(value).__module__ == "numpy" else value
