"""What lookup and memory are worth to an agent: one client reads, edits and prints files in twelve turns, over HTTP.

The agent holds two conversations of six turns. The second begins where the first one's context was dropped, and reads the same
files again. The contenders are `pyspec serve` without drafts (plain), with its defaults except for memory (text), and with its
defaults (memory). Each runs in its own process, in turns, --repeat times. All get the same requests at temperature 0: the model's
earlier turns in a conversation are written in advance, as a good answer would be. Speeds are tokens a second from the first token
of an answer to its last. The first request is reported separately, with the time to its end.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from common import Comparison, Figures, arguments, in_turns, medians, publish, streamed
from measure.contenders import ServerProcess
from measure.report import table

CONTENDERS = {
    "plain": ("--draft", "none"),
    "text": ("--memory", "off"),
    "memory": (),
}
OPTIONS = {
    "contenders": ",".join(CONTENDERS), "draft": "auto", "tokens": 256, "ctx": 8192, "threads": 2, "repeat": 1, "turns": 12,
    "title": "", "out": None, "show": False,
}  # fmt: skip
HEAD = ("contender", "tokens", "tokens/s", "of plain", "first request", "of plain")

SETTINGS = """\
[server]
host = "127.0.0.1"
port = 8080
workers = 2
timeout = 30

[storage]
folder = "data"
format = "json"
compress = false
keep_days = 14

[log]
level = "info"
file = "server.log"
rotate = true
"""

STOCK = """\
class Stock:
    \"\"\"How many pieces of each part lie in the store.\"\"\"

    def __init__(self):
        self.parts = {}

    def add(self, name, count):
        if count < 1:
            raise ValueError("count must be at least 1")
        self.parts[name] = self.parts.get(name, 0) + count

    def take(self, name, count):
        if self.parts.get(name, 0) < count:
            raise ValueError(f"not enough of {name}")
        self.parts[name] -= count
        if self.parts[name] == 0:
            del self.parts[name]

    def total(self):
        return sum(self.parts.values())
"""

SYSTEM = "You edit files. When you are asked for a file, answer with the whole file in a code block and nothing else."
READ, FENCE = 48, "\n```"
"""Most tokens of an answer that is not a file, and the end of one that is: an agent reads no further."""

SAID = {
    "settings.toml": "It holds the settings of a server: its address, where it stores data, and how it logs.",
    "stock.py": "It counts the pieces of each part in a store, and refuses to take what is not there.",
}
EXAMPLE = "colour = red\nsize = 3\n"


class Turn(NamedTuple):
    """A message of the agent, and the conversation before it. file: whether it asks for a file."""

    before: list[dict[str, str]]
    text: str
    file: bool


def _turns(edits: dict[str, tuple[str, str, str]]) -> Iterator[Turn]:
    """Six turns in which each of two files is read, edited and printed. edits: by file, the request, the old text and the new."""
    said = [{"role": "system", "content": SYSTEM}]
    _exchange(
        said,
        _shown("note.txt", EXAMPLE) + "Set size to 4. Print the whole file.",
        _block(EXAMPLE.replace("3", "4")),
    )
    for name, content in (("settings.toml", SETTINGS), ("stock.py", STOCK)):
        edit, old, new = edits[name]
        shown, edited = _shown(name, content), _block(content.replace(old, new))
        for text, answer in (
            (f"{shown}Say in one sentence what it is for.", SAID[name]),
            (f"{edit} Print {name}, the whole file.", edited),
            (f"Print {name} once more, the whole file.", edited),
        ):
            yield Turn(list(said), text, answer == edited)
            _exchange(said, text, answer)


def _exchange(said: list[dict[str, str]], text: str, answer: str) -> None:
    said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def _shown(name: str, content: str) -> str:
    return f"This is {name}:\n\n{_block(content)}\n\n"


def _block(content: str) -> str:
    return f"```\n{content}```"


FIRST_EDITS = {
    "settings.toml": ("Set port to 9090.", "8080", "9090"),
    "stock.py": ("Rename the class to Inventory.", "Stock", "Inventory"),
}
LATER_EDITS = {
    "settings.toml": ("Set level to debug.", '"info"', '"debug"'),
    "stock.py": ("Rename the class to Warehouse.", "Stock", "Warehouse"),
}
TURNS = (*_turns(FIRST_EDITS), *_turns(LATER_EDITS))


class AgentResults(Comparison, kw_only=True):
    """Results for one target. For each contender: tokens, rate (a second), first (s), turns (tokens a second of each)."""

    heading = "Agent traffic"
    intro = (
        "One client reads, edits and prints two files in two conversations of six turns. `plain` is `pyspec serve --draft none`, "
        "`text` the server's defaults with `--memory off`, `memory` its defaults. Speeds are tokens a second from an answer's "
        "first token to its last, over turns 2 to 12, and relative to plain's by turn; the first request is reported separately, "
        "in seconds to its end."
    )

    work = "one client, {0.turns} turns of at most {0.max_tokens} tokens"

    turns: int

    def table(self) -> str:
        """A row for each contender, with its speed relative to plain's."""
        base = self.find("plain") or self.contenders[0]
        turns = range(2, self.turns + 1)
        rows = [
            [
                one["name"],
                f"{one['tokens']:.0f}",
                f"{one['rate']:.1f}",
                f"{one['rate'] / base['rate']:.2f}",
                f"{one['first']:.2f} s",
                f"{base['first'] / one['first']:.2f}",
                *(f"{one[f'turn{n}'] / base[f'turn{n}']:.2f}" for n in turns),
            ]
            for one in self.contenders
        ]
        return table([*HEAD, *map(str, turns)], rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    given = list(sys.argv[1:] if words is None else words)
    options = arguments(__doc__, given, "model", **OPTIONS)
    names = options.contenders.split(",")
    runs = in_turns(names, options.repeat, lambda one: measure(options, one))
    found = {one: medians(those) for one, those in runs.items()}
    publish(AgentResults, "agent", options, given, found, turns=options.turns)


def measure(options: Namespace, contender: str) -> Figures:
    """Run one contender's twelve turns."""
    threads, more = str(options.threads), CONTENDERS[contender]
    command = [sys.executable, "-m", "pyspec", "serve", "-m", options.model, "--parallel", "1", "-c",
               str(options.ctx), "-t", threads, "--draft", options.draft, *more]  # fmt: skip
    figures: Figures = {}
    tokens = seconds = 0.0
    with closing(ServerProcess(command)) as process:
        for n, turn in enumerate(TURNS[: options.turns], 1):
            most = (
                {"max_tokens": options.tokens, "stop": [FENCE]}
                if turn.file
                else {"max_tokens": READ}
            )
            said = [*turn.before, {"role": "user", "content": turn.text}]
            answer = streamed(process, said, **most)
            took = answer.times[-1] - answer.first if answer.times else 0.0
            if options.show:
                print(f"-- {contender}, turn {n}: {answer.block}\n{answer.text}", file=sys.stderr)
            figures[f"turn{n}"] = (answer.tokens - 1) / max(1e-9, took)
            if n == 1:
                figures["first"] = answer.whole
            else:
                tokens, seconds = tokens + answer.tokens - 1, seconds + took
    return {"tokens": tokens, "rate": tokens / max(1e-9, seconds), **figures}


if __name__ == "__main__":
    main()
