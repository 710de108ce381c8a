"""How the chat looks: answers, a line of statistics, and all that is not an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from pyspec.chat.model import AnswerStats
from pyspec.chat.wrap import Wrapper
from pyspec.display import PromptStatus, safe, token_text
from pyspec.tokens import Token


def stats_table(stats: AnswerStats) -> list[tuple[str, str]]:
    """Everything known of an answer, as names and values."""
    block, times = stats.block, stats.timings
    factor = block.get("times_plain")
    tokens = round(block["rounds"] * block["mean_length"])
    return [
        ("tokens", str(tokens)),
        ("rate", f"{stats.rate:.1f} tok/s"),
        ("without drafts", "not known" if factor is None else f"{stats.rate / factor:.1f} tok/s"),
        ("times as fast", "not known" if factor is None else f"{factor:.2f}"),
        (
            "drafted",
            f"{block['drafted']} tokens, {block['verified']} checked, {block['accepted']} accepted",
        ),
        ("mean length", f"{block['mean_length']:.2f} tokens a round"),
        ("relaxed", f"{block['relaxed']} tokens, {block['relaxed_nats']:.3f} nats"),
        (
            "prompt",
            f"{block['prompt_tokens']} tokens, {block['prompt_kept']} kept from the last turn",
        ),
        ("first token", f"{times['first_token_ms']:.0f} ms"),
        ("whole answer", f"{times['total_ms']:.0f} ms"),
        ("rule", stats.rule),
        ("draft", str(block["draft"])),
        ("companion", str(block["companion"])),
    ]


class Screen:
    """Where the chat writes: answers and what commands show to `out`, all the rest to `err`."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self.progress = PromptStatus(err)
        self.wrap = True

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

    @contextmanager
    def answering(self) -> Iterator[Callable[[str], None]]:
        """Gives what writes the pieces of one answer; ends its last line. On a terminal words wrap at the edge."""
        ends = ["\n"]
        wrapper = Wrapper(self._out.width) if self.wrap and self._out.is_terminal else None

        def put(shown: str) -> None:
            if shown:
                ends[0] = shown[-1]
                self._out.file.write(shown)
                self._out.file.flush()

        def write(text: str) -> None:
            self.progress.stop()
            put(wrapper.push(safe(text)) if wrapper else safe(text))

        try:
            yield write
        finally:
            self.progress.stop()
            if wrapper:
                put(wrapper.finish())
            if ends[0] != "\n":
                self._out.file.write("\n")
                self._out.file.flush()
