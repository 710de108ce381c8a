"""Conversations that come back: more of them than a server has slots, such as several agents on one server.

--conversations take turns, one request at a time: each asks a question of QUESTIONS (Spec-Bench's format) of at least --least
characters, then, when all have asked, each goes on with a second one. `second` is how long the second turns waited for their
first token, seconds; `first` how long the first ones did, whose prompts nobody had read before. Servers have --slots, and the
memory for conversations without one as they choose it; "pyspec:0" and "llama-server:0" have none. Every server runs in its own
process; they take turns, --repeat times; temperature 0. With --out FOLDER the table and its page are stored there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from statistics import median

from common import Made, arguments, in_turns, keep, made_by, medians, page_of, streamed
from measure.contenders import ServerProcess
from measure.questions import first_turns
from measure.report import table
from serve import PEER, p95, started

OPTIONS = {
    "contenders": "pyspec,pyspec:0", "server": PEER, "conversations": 8, "slots": 4, "tokens": 24, "least": 600, "ctx": 2048,
    "threads": 2, "repeat": 1, "out": None,
}  # fmt: skip
HEAD = ("server", "first p50", "first p95", "second p50", "second p95")
FOLLOW_UP = "Say that again in one sentence."


class Returning(Made, kw_only=True):
    """The table, and how it was made."""

    rows: list[list[str]]

    def page(self) -> str:
        """The title, a description and the table."""
        return page_of("Conversations that come back", __doc__, self.made, table(HEAD, self.rows))


def command(options: Namespace, contender: str) -> list[str]:
    """The command that starts a server."""
    name, _, memory = contender.partition(":")
    return started(options, name, options.slots, *(["--cache-ram", memory] if memory else []))


def ask(process: ServerProcess, messages: list[dict[str, str]], tokens: int) -> float:
    """Request an answer, which is added to the messages; returns the seconds until its first token."""
    answer = streamed(process, messages, tokens)
    messages.append({"role": "assistant", "content": answer.text})
    return answer.first


def measure(options: Namespace, contender: str, texts: Sequence[str]) -> dict[str, float]:
    """Figures of one server."""
    talks = [[{"role": "user", "content": text}] for text in texts]
    with closing(ServerProcess(command(options, contender))) as process:
        ask(process, [{"role": "user", "content": "Hello."}], 1)
        first = [ask(process, talk, options.tokens) for talk in talks]
        for talk in talks:
            talk.append({"role": "user", "content": FOLLOW_UP})
        second = [ask(process, talk, options.tokens) for talk in talks]
    return {
        "first": median(first), "first p95": p95(first), "second": median(second), "second p95": p95(second),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    texts = first_turns(options.questions)
    chosen = [text for text in texts if len(text) >= options.least][: options.conversations]
    runs = in_turns(
        options.contenders.split(","), options.repeat, lambda one: measure(options, one, chosen)
    )
    rows = [[one, *(f"{s:.2f}" for s in medians(those).values())] for one, those in runs.items()]
    print(table(HEAD, rows))
    if options.out:
        keep(Returning(**made_by("returning", words), rows=rows), options.out / "returning.json")


if __name__ == "__main__":
    main()
