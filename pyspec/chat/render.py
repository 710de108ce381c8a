"""How the chat looks: answers, a line of statistics, and all that is not an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pyspec.chat.model import AnswerStats
from pyspec.display import counted, safe, token_text
from pyspec.tokens import Token

_LONG_PROMPT = 512  # tokens from which on reading is worth showing


def stats_line(stats: AnswerStats) -> str:
    """What an answer did, in one line; a speed-up only where the plain rate was measured."""
    plain = f" ({stats.plain_tokens} plain, to time them)" if stats.plain_tokens else ""
    parts = [f"{counted(stats.tokens, 'token')}{plain}", f"{stats.rate:.1f} tok/s"]
    if stats.speedup is not None:
        parts.append(f"{stats.speedup:.2f}x plain")
    if stats.drafted:
        parts.append(f"{stats.accepted} of {stats.verified} accepted, {stats.drafted} drafted")
        parts.append(f"{stats.mean_length:.2f} a round")
    else:
        parts.append("nothing drafted")
    if stats.relaxed:
        parts.append(f"{stats.relaxed} relaxed ({stats.nats:.2f} nats)")
    parts.append(f"prompt {stats.prompt_tokens}, {stats.prompt_kept} kept")
    return " | ".join(parts)


def stats_table(stats: AnswerStats) -> list[tuple[str, str]]:
    """Everything known of an answer, as names and values."""
    plain = f"{stats.plain_rate:.1f} tok/s" if stats.plain_rate else "not measured yet"
    speedup = f"{stats.speedup:.2f}" if stats.speedup is not None else "not known"
    return [
        ("tokens", f"{stats.tokens}, of them {stats.plain_tokens} plain to time them"),
        ("rate", f"{stats.rate:.1f} tok/s"),
        ("plain rate", plain),
        ("speed-up", speedup),
        (
            "drafted",
            f"{stats.drafted} tokens, {stats.verified} verified, {stats.accepted} accepted",
        ),
        ("mean length", f"{stats.mean_length:.2f} tokens a round"),
        ("relaxed", f"{stats.relaxed} tokens, {stats.nats:.3f} nats"),
        ("prompt", f"{stats.prompt_tokens} tokens, {stats.prompt_kept} kept from the last turn"),
        ("first token", f"{stats.first_token_ms:.0f} ms"),
        ("whole answer", f"{stats.total_ms:.0f} ms"),
        ("rule", stats.rule),
        ("draft", stats.draft),
        ("companion", stats.companion),
    ]


class Screen:
    """Where the chat writes: answers and what commands show to `out`, all the rest to `err`."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self._status: Status | None = None

    def say(self, text: str) -> None:
        """A line of what a command was asked to show."""
        self._out.file.write(safe(text) + "\n")
        self._out.file.flush()

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair a line."""
        for name, value in rows:
            self.say(f"{name:<15} {value}")

    def note(self, text: str) -> None:
        """A dim line about what happened."""
        self._err.print(Text(safe(text), "dim"), soft_wrap=True)

    def error(self, text: str) -> None:
        """A sentence about what went wrong."""
        self._err.print(Text(safe(text), "red"), soft_wrap=True)

    def tokens(self, tokens: Sequence[Token], piece: Callable[[int], bytes]) -> None:
        """An answer's tokens by their source."""
        colour = self._out.color_system is not None and not self._out.no_color
        self._out.print(token_text(tokens, piece, colour), soft_wrap=True, end="")

    def progress(self, done: int, total: int) -> None:
        """How far a long prompt is read; on a terminal only, gone with the first text."""
        if total < _LONG_PROMPT or not self._err.is_terminal:
            return
        message = f"reading the prompt, {done} of {total} tokens"
        if self._status is None:
            self._status = self._err.status(message)
            self._status.start()
        self._status.update(message)

    def _quiet(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def answering(self) -> Iterator[Callable[[str], None]]:
        """Gives what writes the pieces of one answer; ends its last line."""
        ends = ["\n"]

        def write(text: str) -> None:
            self._quiet()
            if shown := safe(text):
                ends[0] = shown[-1]
                self._out.file.write(shown)
                self._out.file.flush()

        try:
            yield write
        finally:
            self._quiet()
            if ends[0] != "\n":
                self._out.file.write("\n")
                self._out.file.flush()
