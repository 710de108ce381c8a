"""How a server performs under load: tokens a second, first tokens, errors and memory, for `pyspec serve` and llama-server.

--clients send the first turns of QUESTIONS, in Spec-Bench's format, one of each kind in turn, over and over until --requests are
done; each sends the next when its last answer has ended. Answers are streamed. Both servers have as many slots as
there are clients, with --ctx positions each; temperature 0, strict. Every contender runs in its own process; they take turns,
--repeat times. "llama-server:K" drafts at most K tokens with --draft, a model or an EAGLE-3 head. The table has medians; memory
is the resident set after a tenth of the requests and at the end, and stderr reports it after each tenth.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median, quantiles

from common import Comparison, Figures, StreamedAnswer, arguments, compare, resident, streamed
from measure.contenders import ServerProcess, llama_server
from measure.questions import first_turns
from measure.report import table

from pyspec.errors import EngineError
from pyspec.gguf.kinds import EAGLE3, kind_of_draft

PEER = "llama-server"
OPTIONS = {
    "contenders": "pyspec", "server": PEER, "clients": 16, "requests": 64, "tokens": 96, "ctx": 2048, "threads": 2,
    "repeat": 1, "draft": None, "title": "", "out": None,
}  # fmt: skip
HEAD = ("contender", "tokens/s", "of llama-server", "first p50", "first p95", "whole p50", "errors",
        "MB then", "MB at the end", "gap p95", "gap max")  # fmt: skip


class ServeResults(Comparison, kw_only=True):
    """Results for one target. For each contender: rate (tokens a second); first, late, whole (seconds); errors; then, end (MB).

    gap and longest: of the longest wait for more in each answer, p95 and the most, seconds.
    """

    heading = "Servers under load"
    intro = (
        "What clients of a server see. Each sends the next question, of another kind, when its last answer has ended. Answers "
        "are streamed; both servers have a slot for each client. First tokens and whole answers are in seconds; memory is the "
        "resident set after a tenth of the requests and at the end. A gap is the longest wait for more text within an answer. "
        '"pyspec" is `pyspec serve` with its defaults, "pyspec:none" the same without drafts; "llama-server:K" drafts at most K '
        "tokens with the EAGLE-3 head that ships."
    )

    work = "{0.clients} clients, {0.requests} requests of at most {0.max_tokens} tokens"

    clients: int
    requests: int

    def table(self) -> str:
        """A row for each contender, with speeds relative to llama-server's if it was measured."""
        base = self.find(PEER)
        rows = [
            [
                one["name"],
                f"{one['rate']:.1f}",
                f"{one['rate'] / base['rate']:.2f}" if base else "-",
                *(f"{one[key]:.2f}" for key in ("first", "late", "whole")),
                *(f"{one[key]:.0f}" for key in ("errors", "then", "end")),
                *(f"{one[key]:.2f}" for key in ("gap", "longest")),
            ]
            for one in self.contenders
        ]
        return table(HEAD, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    texts = first_turns(options.questions)
    compare(
        ServeResults, "serve", options, words, options.contenders.split(","), lambda one: measure(options, one, texts),
        clients=options.clients, requests=options.requests,
    )  # fmt: skip


def command(options: Namespace, contender: str) -> list[str]:
    """The command that starts a server."""
    name, _, word = contender.partition(":")
    if name != PEER:
        return started(options, name, options.clients, "--draft", word or "auto")
    more = ["--cache-ram", "0"]
    if word:
        kind = "draft-eagle3" if kind_of_draft(options.draft) == EAGLE3 else "draft-simple"
        more += ["--spec-type", kind, "-md", str(options.draft)]
        more += ["-td", str(options.threads), "--spec-draft-n-max", word]
    return started(options, name, options.clients, *more)


def started(options: Namespace, name: str, slots: int, *more: str) -> list[str]:
    """The command that starts llama-server or `pyspec serve` with so many slots, each of --ctx positions."""
    threads = str(options.threads)
    if name == PEER:
        context = ["-c", str(slots * options.ctx), "-np", str(slots), "-t", threads, "-tb", threads]
        return llama_server(options.server, options.model, [*context, *more])
    return [sys.executable, "-m", "pyspec", "serve", "-m", options.model, "--parallel", str(slots), "-c",
            str(options.ctx), "-t", threads, *more]  # fmt: skip


def measure(options: Namespace, contender: str, texts: list[str]) -> Figures:
    """Measure one contender under load; memory is sampled and printed to stderr after each tenth of the requests."""
    answers, held = [], []
    with closing(ServerProcess(command(options, contender))) as process:

        def ask(text: str, tokens: int) -> StreamedAnswer:
            return streamed(process, [{"role": "user", "content": text}], tokens)

        def request(number: int) -> StreamedAnswer | None:
            try:
                return ask(texts[number % len(texts)], options.tokens)
            except (EngineError, KeyError, ValueError) as error:
                print(f"request {number}: {error!r}", file=sys.stderr)
                return None

        ask(texts[0], 1)
        start = time.perf_counter()
        with ThreadPoolExecutor(options.clients) as clients:
            for number, answer in enumerate(clients.map(request, range(options.requests)), 1):
                answers += [answer] if answer else []
                if number % max(1, options.requests // 10) == 0:
                    held.append(resident("VmRSS", process.pid))
                    said = f"{number} of {options.requests} requests: {held[-1]:.0f} MB, {number - len(answers)} errors"
                    print(said, file=sys.stderr, flush=True)
        seconds = time.perf_counter() - start
        held.append(resident("VmRSS", process.pid))
    tokens = sum(answer.tokens for answer in answers)
    firsts, waits = [answer.first for answer in answers], [answer.gap for answer in answers]
    return {
        "tokens": tokens, "seconds": seconds, "rate": tokens / seconds, "first": median(firsts), "late": p95(firsts),
        "whole": median(answer.whole for answer in answers), "errors": options.requests - len(answers),
        "then": held[0], "end": held[-1], "gap": p95(waits), "longest": max(waits),
    }  # fmt: skip


def p95(seconds: Sequence[float]) -> float:
    """The 95th percentile, at most the longest: the default method of `quantiles` can exceed it."""
    return quantiles(seconds, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
