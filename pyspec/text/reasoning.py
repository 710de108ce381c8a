"""How models mark their reasoning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Start = Literal["inside", "behind", "free"]
"""Where an answer begins: inside reasoning that the prompt opened, behind reasoning, or free to begin some."""


@dataclass(frozen=True)
class Reasoning:
    """The marks around reasoning."""

    open: tuple[str, ...]
    """What begins it. The first is how the family writes it."""
    close: tuple[str, ...]
    """What ends it."""
    anywhere: bool = False
    """Whether reasoning may begin later in the answer, as with marks that nobody writes as text."""
    dropped: tuple[str, ...] = ()
    """Marks around the content, which are not shown."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks; they must be shown even if they are control tokens."""
        return (*self.open, *self.close, *self.dropped)

    def start(self, prompt: str) -> Start:
        """Return where an answer to this prompt begins."""
        text = prompt.rstrip()
        if any(text.endswith(mark.rstrip()) for mark in self.close):
            return "behind"
        return "inside" if any(text.endswith(mark.rstrip()) for mark in self.open) else "free"


def _tags(name: str, *dropped: str) -> Reasoning:
    return Reasoning((f"<{name}>",), (f"</{name}>",), dropped=dropped)


THINK = _tags("think")

_KNOWN: tuple[tuple[str, Reasoning], ...] = (
    (
        "<|START_THINKING|>",
        Reasoning(
            ("<|START_THINKING|>",),
            ("<|END_THINKING|>",),
            anywhere=True,
            dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        ),
    ),
    ("<|channel>", Reasoning(("<|channel>thought", "<|channel>"), ("<channel|>",), anywhere=True)),
    ("[THINK]", Reasoning(("[THINK]",), ("[/THINK]",))),
    ("<seed:think>", _tags("seed:think")),
    ("<mm:think>", _tags("mm:think")),
    (
        "[BEGIN FINAL RESPONSE]",
        Reasoning(
            ("Here are my reasoning steps:",),
            ("[BEGIN FINAL RESPONSE]",),
            dropped=("[END FINAL RESPONSE]",),
        ),
    ),
    (
        "<|open|>",
        Reasoning(
            ("<|open|>think<|sep|>",),
            ("<|close|>think<|sep|>",),
            anywhere=True,
            dropped=(
                "<|open|>response<|sep|>",
                "<|close|>response<|sep|>",
                "<|close|>message<|sep|>",
            ),
        ),
    ),
    (
        "<|content|>",
        Reasoning(
            ("<|think|>",),
            ("<|end|>",),
            anywhere=True,
            dropped=("<|begin|>assistant", "<|content|>"),
        ),
    ),
    (":opensource", _tags("think:opensource", "<tool_calls:opensource>")),
    ("\u25c1think\u25b7", Reasoning(("\u25c1think\u25b7",), ("\u25c1/think\u25b7",))),
    ("<thought>", _tags("thought")),
    ("<response>", _tags("think", "<response>", "</response>")),
    ("<think>", THINK),
    ("</think>", THINK),
)
"""Strings that a template contains if its model reasons like this; the first match counts."""


_QUIET: tuple[tuple[str, str, Any], ...] = (
    (r"\benable_thinking\b", "enable_thinking", False),
    (r"\{%-?\s*(?:el)?if\b[^%]*(?<![_.'\"])\bthinking\b(?![_'\"])", "thinking", False),
    (r"\bthinking_mode\b[^%]*[\"']disabled[\"']", "thinking_mode", "disabled"),
    (r"\bthinking_budget\b", "thinking_budget", 0),
    (r"\breasoning_effort\b[^%]*[\"']no_think[\"']", "reasoning_effort", "no_think"),
    (r"\breasoning_effort\b", "reasoning_effort", "low"),
)
"""A pattern for templates that read a variable, the variable, and its value for no reasoning, or as little as possible."""


def quiet_arguments(template: str) -> dict[str, Any]:
    """Return the variables that make a template ask for no reasoning; empty if it has none."""
    return next(({name: value} for read, name, value in _QUIET if re.search(read, template)), {})


EFFORTS = ("no_think", "none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for the amount of reasoning, from the least to the most."""

_TAKEN = re.compile(r"\b(reasoning_effort|thinking_effort)\s+not\s+in\s*\[([^\]]*)\]")


def known_efforts(template: str) -> tuple[str, list[str]] | None:
    """Return the template's variable for the amount of reasoning, and the words it accepts; None if it refuses none."""
    found = _TAKEN.search(template)
    quoted = re.findall(r"[\w-]+", found[2]) if found else []
    words = [word for word in EFFORTS if word in quoted]
    return (found[1], words) if found and words else None


def nearest_effort(effort: str, words: Sequence[str]) -> str:
    """Return the one of `words` nearest to an effort; of two equally near, the higher."""
    place = EFFORTS.index(effort)
    return min(words, key=lambda word: (abs(EFFORTS.index(word) - place), -EFFORTS.index(word)))


def reasoning_of(template: str, is_token: Callable[[str], bool]) -> Reasoning | None:
    """Return how a model marks its reasoning, according to its template, or else to its vocabulary's tokens."""
    for mark, found in _KNOWN:
        if mark in template:
            return found
    return THINK if all(map(is_token, THINK.marks)) else None
