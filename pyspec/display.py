"""How model text and tokens look on a terminal: nothing that could drive it, and each token's source."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pyspec.tokens import Source, Token

_JOINERS = "\u200c\u200d"  # format characters that Persian and emoji are written with
_STYLES = {Source.TARGET: "", Source.ACCEPTED: "green", Source.RELAXED: "bold yellow"}
_FRAMES = {Source.TARGET: ("", ""), Source.ACCEPTED: ("[", "]"), Source.RELAXED: ("{", "}")}
_MEANING = {
    Source.TARGET: "the target's own",
    Source.ACCEPTED: "drafted, and the target's choice too",
    Source.RELAXED: "drafted, a runner-up the target hardly ranked lower",
}


def safe(text: str) -> str:
    """Text that cannot drive a terminal.

    Control characters but newline and tab are dropped, ESC and the C1 set among them, and format
    characters such as bidirectional overrides, and lone surrogates.
    """
    return "".join(char for char in text if char in "\n\t" or _harmless(char))


def _harmless(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs") or char in _JOINERS


def counted(n: int, thing: str) -> str:
    """A number and what it counts, in the plural but for one."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


@dataclass(frozen=True)
class Span:
    """Text of neighbouring tokens of one source; a relaxed one stands alone, with its token."""

    text: str
    source: Source
    relaxed: Token | None = None


def spans(tokens: Iterable[Token], piece: Callable[[int], bytes]) -> list[Span]:
    """The tokens as spans. A character split over tokens belongs to the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    made: list[Span] = []
    for token in tokens:
        text = decoder.decode(piece(token.id))
        if token.source is Source.RELAXED:
            made.append(Span(text, token.source, token))
        elif made and made[-1].source is token.source:
            made[-1] = Span(made[-1].text + text, token.source)
        else:
            made.append(Span(text, token.source))
    rest = decoder.decode(b"", final=True)
    return [*made, Span(rest, Source.TARGET)] if rest else made


def token_text(tokens: Sequence[Token], piece: Callable[[int], bytes], colour: bool) -> Text:
    """The answer by source, a legend, and for each relaxed token what the target preferred.

    Without colour, accepted stretches stand in [brackets] and relaxed tokens in {braces}.
    """
    text = Text()
    relaxed: list[Token] = []
    for span in spans(tokens, piece):
        _mark(text, safe(span.text), span.source, colour)
        if span.relaxed is not None:
            relaxed.append(span.relaxed)
            text.append(f"({len(relaxed)})", "dim")
    text.append("\n\n")
    for source in Source:
        count = sum(token.source is source for token in tokens)
        _mark(text, source.label, source, colour)
        text.append(f"  {counted(count, 'token')}, {_MEANING[source]}\n")
    for number, token in enumerate(relaxed, start=1):
        said, preferred = (_quoted(piece(i)) for i in (token.id, token.preferred))
        text.append(
            f"({number}) {said}, the target preferred {preferred} by {token.gap:.3f} nats\n"
        )
    return text


def _mark(text: Text, words: str, source: Source, colour: bool) -> None:
    before, after = ("", "") if colour else _FRAMES[source]
    text.append(f"{before}{words}{after}", _STYLES[source])


def _quoted(data: bytes) -> str:
    return repr(safe(data.decode("utf-8", "replace")))


_LONG_PROMPT = 512  # tokens from which on reading is worth showing


class PromptStatus:
    """How far a long prompt is read: on a terminal only, and gone with `stop`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def __call__(self, done: int, total: int) -> None:
        """Tokens read, of so many."""
        if total < _LONG_PROMPT or not self._console.is_terminal:
            return
        message = f"reading the prompt, {done} of {total} tokens"
        if self._status is None:
            self._status = self._console.status(message)
            self._status.start()
        self._status.update(message)

    def stop(self) -> None:
        """Take it off the screen."""
        if self._status is not None:
            self._status.stop()
            self._status = None


SAME = 0.05
"""How far from 1 a factor may be and still mean the same speed."""

STATS_HELP = (
    "tok/s: tokens a second after the prompt was read. drafted: tokens that were proposed; checked: of them, those the "
    "target looked at; accepted: of them, those that stayed. a round: tokens gained each time the target ran, 1 without "
    "drafts. relaxed: accepted though the target ranked another one first (--verify margin), with the sum of their gaps."
)
"""The terms of the line of statistics."""


def verdict(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """One plain sentence: how fast an answer came, and what drafts did for it.

    block: the `speculation` block of a result.
    """
    rate = f"{tokens_per_second:.1f} tokens/s"
    if block.get("draft", "none") == "none":
        return f"{rate}, without drafts"
    factor = block.get("times_plain")
    if not block.get("verified"):
        return f"{rate}; drafts would not have paid here, so none were used"
    if factor is None:
        return f"{rate}; the answer is too short to say what drafts brought"
    if factor >= 1 + SAME:
        return f"{rate}, {factor:.2f} times as fast as without drafts"
    off = ", and were switched off for most of it" if _mostly_off(block) else ""
    if factor > 1 - SAME:
        return f"{rate}, as fast as without drafts{off.replace(', and', ', which')}"
    return f"{rate}; drafts did not help here ({factor:.2f} times the speed without them){off}"


def _mostly_off(block: Mapping[str, Any]) -> bool:
    """Whether in most rounds of an answer nothing drafted was checked."""
    plain = block.get("choice", {}).get("rounds_by_length", {}).get(0, 0)
    return bool(2 * plain > block["rounds"])


def stats_line(block: Mapping[str, Any], tokens_per_second: float) -> str:
    """The counts of an answer in one line; `STATS_HELP` explains the terms."""
    if not block:
        return "0 tokens"
    tokens = round(block["rounds"] * block["mean_length"])
    parts = [counted(tokens, "token"), f"{tokens_per_second:.1f} tok/s"]
    if block["drafted"]:
        parts.append(
            f"{block['drafted']} drafted, {block['verified']} checked, {block['accepted']} accepted"
        )
        parts.append(f"{block['mean_length']:.2f} a round")
    else:
        parts.append("nothing drafted")
    if block["relaxed"]:
        parts.append(f"{block['relaxed']} relaxed ({block['relaxed_nats']:.2f} nats)")
    parts.append(f"prompt {block['prompt_tokens']}, {block['prompt_kept']} kept")
    parts.append(f"draft {block['draft']}")
    return " | ".join(parts)
