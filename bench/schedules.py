"""How much the scheduling order alone affects a server's speed: schedules of prompts and answers, simulated from decode times.

Each of --clients sends its next request when its last answer has ended, until --requests are done, and gets --tokens tokens.
Prompts are as long as those of QUESTIONS (Spec-Bench's format, one of each kind in turn) in MODEL's vocabulary. A decode with
rows of several answers takes --base ms plus --answer ms for each; prompt tokens take a pass of their own, --reading ms plus
--row ms for each, with at most 512 a pass. The defaults are what SmolLM2-135M took as BF16 on two AMD cores with AVX-512;
nothing is timed here. There are no drafts: a server whose KV cache has a stream for each sequence uses none above two
answers.

- `prompts first` is llama-server's way: a decode takes all prompt tokens that wait, at most 2,048, next to the answers' rows.
- `ours, N ms` is the server's own Composer: no answer waits longer than N ms for its next token while prompts are read.
- `bound`: all prompts in passes of 512, and every decode of answers full. No schedule can exceed it.

Times are seconds. A gap is the longest wait for a token within an answer.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec
from common import Replayed, arguments, command_line, keep, page_of
from measure.records import commit
from measure.report import table
from serve import kinds_in_turn, p95

from pyspec.batch.composing import GAP_MS, Composer
from pyspec.engine.target import TargetLlama
from pyspec.profiling.questions import load_questions

PASS = 512
OPTIONS = {
    "clients": "4,16", "requests": 208, "tokens": 48, "base": 7.0, "answer": 1.65, "reading": 9.0, "row": 1.15,
    "gap": f"100,{GAP_MS:g},500", "out": None,
}  # fmt: skip
HEAD = ("clients", "schedule", "tokens/s", "of prompts first", "first p50", "first p95", "gap p95")


class Request(msgspec.Struct):
    """A client's request: its prompt, when it was sent, unread prompt tokens before the last, and its tokens so far.

    To a Composer it is an answer and its run.
    """

    prompt: int
    sent: float
    missing: int
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    gap: float = 0.0
    ready: bool = True
    scored: None = None
    masks: None = None

    @property
    def run(self) -> Request:
        """The request itself."""
        return self

    def emit(self, now: float) -> None:
        """Count one more token."""
        self.first = self.first or now
        self.gap = max(self.gap, now - self.last) if self.tokens else 0.0
        self.last = now
        self.tokens += 1


class Costs(msgspec.Struct):
    """Costs in milliseconds."""

    base: float
    answer: float
    reading: float
    row: float

    def decode(self, answers: int, rows: int) -> float:
        """Milliseconds of a decode with this many answers and prompt tokens."""
        passes = -(-rows // PASS)
        return (
            bool(answers) * self.base
            + self.answer * answers
            + self.reading * passes
            + self.row * rows
        )


class Load:
    """Clients and their requests, and the state of a server with as many sequences."""

    def __init__(self, prompts: Sequence[int], options: Namespace, clients: int) -> None:
        self.costs = Costs(options.base, options.answer, options.reading, options.row)
        self.n, self._tokens = clients, options.tokens
        self._prompts = iter(prompts)
        self.now = 0.0
        self.waiting: list[Request] = []
        self.active: dict[int, Request] = {}
        self.ended: list[Request] = []
        for _ in range(clients):
            self._ask()

    def _ask(self) -> None:
        n = next(self._prompts, None)
        if n is not None:
            self.waiting.append(Request(n, self.now, n - 1))

    def start(self) -> None:
        """Give a sequence to the request that waits longest."""
        seq = next(seq for seq in range(self.n) if seq not in self.active)
        self.active[seq] = self.waiting.pop(0)

    def decode(self, answers: Sequence[Request], reading: Sequence[tuple[Request, int]]) -> float:
        """Run one decode. Those of `answers` with unread prompt tokens read them all. Returns its milliseconds."""
        rows = sum(request.missing + 1 for request in answers if request.missing)
        rows += sum(n for _, n in reading)
        ms = self.costs.decode(sum(not request.missing for request in answers), rows)
        self.now += ms
        for request, n in reading:
            request.missing -= n
        for request in answers:
            request.missing = 0
            request.emit(self.now)
        for seq, request in list(self.active.items()):
            if request.tokens == self._tokens:
                self.ended.append(self.active.pop(seq))
                self._ask()
        return ms

    @property
    def going_on(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.active)


def prompts_first(load: Load) -> None:
    """Decode all waiting prompt tokens, 2,048 at most, together with the answers."""
    while load.going_on:
        while load.waiting:
            load.start()
        left = 2048
        answers = [request for request in load.active.values() if not request.missing]
        reading: list[tuple[Request, int]] = []
        for request in [request for request in load.active.values() if request.missing]:
            if request.missing < left:
                left -= request.missing + 1
                answers.append(request)
            elif left > 0:
                reading.append((request, left))
                left = 0
        load.decode(answers, reading)


def composed(load: Load, gap: float) -> None:
    """Compose decodes as the server does over streams: it starts a prompt when the one before it is read."""
    n_batch = max(PASS, 72 * load.n)
    contexts: Any = SimpleNamespace(
        layout=SimpleNamespace(each=2048), n_slots=load.n, n_batch=n_batch, answering_rows=n_batch,
        fill_rows=lambda answering: PASS - answering if answering else n_batch,
    )  # fmt: skip
    known = [load.costs.decode(n, 0) for n in range(65)]
    curve: Any = SimpleNamespace(target=SimpleNamespace(table=lambda: known))
    active: Any = load.active
    composer = Composer(contexts, active, curve, interactive=True, exact=False, gap=gap)
    while load.going_on:
        while load.waiting and len(load.active) < load.n and not composer.holds_admission:
            load.start()
        chosen: Any = composer.next()
        answers, reading = chosen
        filled = sum(request.missing for request in answers) + sum(n for _, n in reading)
        composer.took(filled, len(answers), load.decode(answers, reading))


def bound(load: Load, prompts: Sequence[int], tokens: int) -> float:
    """The most tokens a second that a schedule can reach."""
    costs, answered = load.costs, len(prompts) * (tokens - 1)
    reading = sum(prompts) * (costs.row + costs.reading / PASS)
    return 1e3 * len(prompts) * tokens / (reading + answered * costs.decode(load.n, 0) / load.n)


def lines(prompts: Sequence[int], options: Namespace, clients: int) -> Iterator[list[str]]:
    """Yield a line for each schedule."""
    ways = {"prompts first": prompts_first}
    ways |= {f"ours, {n} ms": partial(composed, gap=float(n)) for n in options.gap.split(",")}
    first = 0.0
    for name, play in ways.items():
        load = Load(prompts, options, clients)
        play(load)
        rate = 1e3 * len(prompts) * options.tokens / load.now
        first = first or rate
        waits = [1e-3 * (request.first - request.sent) for request in load.ended]
        gaps = [1e-3 * request.gap for request in load.ended]
        figures = (rate / first, median(waits), p95(waits), p95(gaps))
        yield [str(clients), name, f"{rate:.1f}", *(f"{each:.2f}" for each in figures)]
    most = bound(Load(prompts, options, clients), prompts, options.tokens)
    yield [str(clients), "bound", f"{most:.1f}", f"{most / first:.2f}", "-", "-", "-"]


class Schedules(Replayed):
    """Speeds of schedules, and about the prompts they were played with."""

    about: str

    def page(self) -> str:
        """The title, a description and the table."""
        made = f"{self.made} {self.about}"
        return page_of("Schedules of a server", __doc__, made, table(HEAD, self.rows))


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    texts = kinds_in_turn(load_questions(Path(options.questions)))
    with closing(TargetLlama(options.model, vocab_only=True, verbose=False)) as vocabulary:
        lengths = [len(vocabulary.tokenize(text.encode())) for text in texts]
    prompts = [lengths[i % len(lengths)] for i in range(options.requests)]
    rows = [line for n in options.clients.split(",") for line in lines(prompts, options, int(n))]
    print(table(HEAD, rows))
    if options.out:
        about = f"{len(prompts)} prompts of {min(prompts)} to {max(prompts)} tokens, {median(prompts):.0f} in the median."
        found = Schedules(command_line("schedules", words), commit(), rows, about)
        keep(found, options.out / "schedules.json")


if __name__ == "__main__":
    main()
