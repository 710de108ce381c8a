"""Tokens a second at one to many sequences on one device: plain decoding, drafts of fixed length, and the policy's.

    python bench/card/sequences.py TARGET OUT.jsonl --good DRAFT --poor DRAFT --companion COMPANION

One `pyspec.Batch` for each draft, with the companion and without, answers every cell of its table, so that models are loaded four
times. A cell is a number of sequences, a temperature and a contender; it is one line of OUT.jsonl, with raw figures, written when
it has ended. Cells that OUT.jsonl has are not measured again, and none begins after --until (seconds since the epoch).

A cell's time begins a round after every sequence has its first token, since fixed drafts read the prompts in that round, and ends
after --seconds or when a quarter of the sequences has ended. Contenders: `plain`; `fixed:K`; `auto`, the policy by the draft's p
alone, or with a companion at hand the policy that may ask it; `companion`, with draft and companion always on; `margin`, `auto`
under the margin rule. The first cell of each number of sequences is measured once before and not kept.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from common import arguments
from measure.questions import first_turns
from measure.records import commit, machine

from pyspec.batch import Batch, Settings
from pyspec.requests.records import Record, SpeculationBody
from pyspec.text.parts import Piece, RecordResult

ALONE = ("plain", "fixed:1", "fixed:3", "fixed:5", "auto", "margin")
JUDGED = ("plain", "auto", "companion")
"""Contenders without a companion, and with one."""
LONGEST_PROMPT = 700  # characters
OPTIONS = {
    "good": "", "poor": "", "companion": "", "sequences": "1,4,8,16,32,64", "temps": "0,0.8", "tokens": 192, "seconds": 0.7,
    "ctx": 512, "gpu_layers": "auto", "threads": 0, "until": 0.0, "questions": None,
}  # fmt: skip
Key = tuple[str, bool, int, float, str]
NAMES = ("draft", "companion", "sequences", "temperature", "contender")
"""What a cell measures, and what its line calls that; companion: whether there is one."""


@dataclass
class Watch:
    """Counts what n sequences emit between two moments. seconds: the longest time between them."""

    n: int
    seconds: float
    begun: set[int] = field(default_factory=set)
    tokens: int = 0
    rounds: int = 0
    read: bool = False
    start: float = 0.0
    took: float = 0.0
    ended: int = 0

    def hear(self, i: int, said: Piece | RecordResult) -> None:
        """Take what the i-th sequence emitted in a round."""
        if isinstance(said, RecordResult):
            self.ended += 1
        elif said.tokens:
            self.begun.add(i)
            self.tokens += len(said.tokens) * bool(self.start and not self.took)

    def round(self) -> bool:
        """Note the end of a round; return whether the time is over."""
        now = time.perf_counter()
        if not self.start:
            self.start = now if self.read else 0.0
            self.read = len(self.begun) == self.n
        elif not self.took:
            self.rounds += 1
            if 4 * self.ended >= self.n or now - self.start >= self.seconds:
                self.took = now - self.start
        return bool(self.took)


def speculation(contender: str) -> SpeculationBody:
    """A contender as a record's options."""
    if contender == "margin":
        return SpeculationBody(verify="margin", length="auto")
    plain = contender == "plain"
    return SpeculationBody(enabled=not plain, length=None if plain else contender)


def measure(
    batch: Batch, texts: Sequence[str], temperature: float, contender: str, options: Namespace
) -> dict[str, Any]:
    """Raw figures of one cell; drafted, verified and accepted are of whole answers, those cut off included."""
    watch = Watch(len(texts), options.seconds)
    jobs = []
    for i, text in enumerate(texts):
        how = {"temperature": temperature, "speculation": speculation(contender)}
        job = batch.maker.answer(i, Record(id=str(i), prompt=text, **how))
        job.listener = partial(watch.hear, i)
        jobs.append(job)
        batch.submit(job)

    def after() -> None:
        if watch.round():
            for job in jobs:
                job.cancelled = True

    before, start = batch.stats()["decode_s"], time.perf_counter()
    results = list(batch.stream(after))
    whole, after_it = time.perf_counter() - start, batch.stats()["decode_s"]
    if error := next((result.error for result in results if result.error), None):
        return {"error": f"{error.type}: {error.message}"}
    if not watch.took:
        return {"error": "an answer ended before the time began"}
    found = {"tokens": watch.tokens, "seconds": watch.took, "rounds": watch.rounds, "whole": whole}
    counts = ("drafted", "verified", "accepted")
    found |= {name: sum(result.speculation[name] for result in results) for name in counts}
    return {**found, "decode_s": {role: s - before[role] for role, s in after_it.items()}}


def cells(options: Namespace) -> Iterator[tuple[tuple[str, bool], list[Key]]]:
    """What each batch has to measure, the good draft first."""
    numbers = [*map(int, options.sequences.split(","))]
    temps = [*map(float, options.temps.split(","))]
    for draft, judged in product(("good", "poor"), (False, True)):
        if getattr(options, draft) and (options.companion or not judged):
            every = product(temps, numbers, JUDGED if judged else ALONE)
            yield (draft, judged), [(draft, judged, n, temp, who) for temp, n, who in every]


def measured(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of cells; one that a killed run cut off is left out."""
    found, text = [], path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def key_of(cell: dict[str, Any]) -> Key:
    """What a line measured."""
    return tuple(cell[name] for name in NAMES)  # type: ignore[return-value]


def append(path: Path, cell: dict[str, Any]) -> None:
    """Add a line, behind a line break if a killed run left half of one."""
    with path.open("a+", encoding="utf-8") as file:
        size = file.tell()
        file.seek(max(0, size - 1))
        broken = size > 0 and file.read(1) != "\n"
        file.write("\n" * broken + json.dumps(cell) + "\n")


def opened(options: Namespace, draft: str, judged: bool) -> Batch:
    """A batch with this draft for the largest number of sequences; all share a pool of KV cells."""
    most, given = max(map(int, options.sequences.split(","))), options.gpu_layers
    return Batch(
        options.target, draft=getattr(options, draft), companion=options.companion if judged else "none",
        settings=Settings(max_tokens=options.tokens), parallel=most, n_ctx=options.ctx, cells=most * options.ctx,
        memory=False, n_gpu_layers=given if given == "auto" else int(given), n_threads=options.threads or None,
    )  # fmt: skip


def fill(batch: Batch, missing: Sequence[Key], texts: Sequence[str], options: Namespace) -> None:
    """Measure these cells, as far as the time goes."""
    warm = set[int]()
    for key in missing:
        *_, n, temperature, who = key
        asked = list(islice(cycle(texts), n)), temperature, who, options
        if options.until and time.time() >= options.until:
            return
        if n not in warm:
            warm.add(n)
            measure(batch, *asked)
        cell = dict(zip(NAMES, key)) | measure(batch, *asked)
        cell |= {"machine": machine(), "placed": batch.placed, "commit": commit()}
        append(Path(options.out), cell)
        print(json.dumps(cell), file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Measure the cells that are missing."""
    options = arguments(__doc__, words, "target", "out", **OPTIONS)
    texts = [text for text in first_turns(options.questions) if len(text) < LONGEST_PROMPT]
    known = {key_of(cell) for cell in measured(Path(options.out)) if "error" not in cell}
    for which, wanted in cells(options):
        missing = [key for key in wanted if key not in known]
        if missing and (not options.until or time.time() < options.until):
            with opened(options, *which) as batch:
                fill(batch, missing, texts, options)


if __name__ == "__main__":
    main()
