"""What flash attention costs or gains, and what "auto" chooses: prompts of several lengths, and 64 tokens behind each.

    python bench/attention.py MODEL [MODEL ...] [--lengths 31,213,1115,4000] [--repeat 5] [--build WORDS] [--out FOLDER]

Each model answers without drafts, with flash attention, without it, and as "auto" chose, in turns within one process; medians.
`reading` is prompt tokens a second, `plain` tokens a second of the answer, `whole` of both together. "auto" holds where its whole
time is at least .97 of the better setting's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import llama_cpp
import msgspec
from common import Made, arguments, in_turns, keep, made_by, page_of
from measure.records import ModelFile, model_file
from measure.report import table

from pyspec.hub.locate import resolve
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Sampling

SETTINGS = {"on": True, "off": False, "auto": "auto"}
TEXT = b"The keeper of the light wrote down each evening which ships had passed, and what the weather had been. "
TOKENS = 64
HEAD = ("model", "prompt", "reading on / off", "plain on / off", "whole on / off", "auto is", "of the better")  # fmt: skip
OPTIONS = {"lengths": "31,213,1115,4000", "threads": 0, "repeat": 5, "build": "", "out": None}


class Cell(msgspec.Struct):
    """One model and length: whether "auto" chose flash attention, and by setting the seconds of reading and of answering."""

    model: str
    length: int
    chosen: bool
    read: dict[str, list[float]]
    answered: dict[str, list[float]]

    def whole(self, setting: str) -> list[float]:
        """Seconds of prompt and answer."""
        return list(map(sum, zip(self.read[setting], self.answered[setting])))

    @property
    def held(self) -> float:
        """The better setting's time over that of "auto": the median over turns, in which each has its own neighbours."""
        return median(min(on, off) / auto for on, off, auto in zip(*map(self.whole, SETTINGS)))

    def row(self) -> list[str]:
        """The cells of the table."""
        pairs = [
            [self.length / median(self.read[name]) for name in ("on", "off")],
            [TOKENS / median(self.answered[name]) for name in ("on", "off")],
            [(self.length + TOKENS) / median(self.whole(name)) for name in ("on", "off")],
        ]
        rates = [" / ".join(f"{rate:.0f}" for rate in pair) for pair in pairs]
        chosen = "on" if self.chosen else "off"
        return [self.model, str(self.length), *rates, chosen, f"{self.held:.2f}"]


class Attention(Made, kw_only=True):
    """Every cell; models by file. build: of llama.cpp, if it was not made for this processor. features: what it uses of it."""

    models: list[ModelFile]
    threads: int
    cells: list[Cell]
    build: str = ""
    features: str = ""

    def page(self) -> str:
        """The title, a description, and the table."""
        files = "; ".join(f"{one.name}, sha256 {one.sha256}" for one in self.models)
        made = f"{self.made} {self.threads} threads. Models: {files}."
        if self.features:
            made += f" llama.cpp uses {self.features}."
        least = min(cell.held for cell in self.cells)
        said = f'"auto" is at {least:.2f} of the better setting or more.'
        about = (__doc__ or "").rpartition("\n\n")[2]
        rows = [cell.row() for cell in self.cells]
        title = f"Flash attention and what is chosen{self.build and ', ' + self.build}"
        return page_of(title, about, made, table(HEAD, rows), said)


def time_one(llm: SpeculativeLlama, length: int) -> tuple[float, float]:
    """Seconds of reading a prompt of so many tokens, and of answering it."""
    prompt = (llm.tokenize(TEXT) * (length // 16 + 1))[:length]
    llm.reset()
    how = Sampling(temperature=0.0, logit_bias={llm.token_eos(): float("-inf")})
    start = perf_counter()
    steps = llm.steps(prompt, how, max_tokens=TOKENS)
    first = next(step for step in steps if step.tokens)
    read = perf_counter()
    n = len(first.tokens) + sum(len(step.tokens) for step in steps)
    if n != TOKENS:
        raise RuntimeError(f"the answer has {n} tokens, not {TOKENS}")
    return round(read - start, 5), round(perf_counter() - read, 5)


def measure(path: Path, lengths: Sequence[int], threads: int, repeat: int) -> list[Cell]:
    """The cells of a model."""
    options = {"n_ctx": max(lengths) + TOKENS + 1, "n_threads": threads or None, "draft": "none"}
    cells = []
    with ExitStack() as stack:
        llms = {
            name: stack.enter_context(SpeculativeLlama(str(path), flash_attn=flash, **options))  # type: ignore[arg-type]
            for name, flash in SETTINGS.items()
        }
        for length in lengths:
            for llm in llms.values():
                time_one(llm, length)  # warms up
            found = in_turns(SETTINGS, repeat, lambda name, n=length: time_one(llms[name], n))
            read, answered = ({s: [one[i] for one in found[s]] for s in SETTINGS} for i in (0, 1))
            chosen = llms["auto"].loading.flash_attn
            cells.append(Cell(path.stem, length, chosen, read, answered))
    return cells


def features() -> str:
    """The processor's features that llama.cpp was built to use."""
    told = llama_cpp.llama_print_system_info().decode()
    return ", ".join(re.findall(r"(\w+) = 1", told))


def main(words: Sequence[str] | None = None) -> None:
    """Measure each model, and print the page; with --out, also store it."""
    options = arguments(__doc__, words, "models*", **OPTIONS)
    paths = [resolve(name) for name in options.models or [None]]
    lengths = [int(length) for length in options.lengths.split(",")]
    cells = [c for path in paths for c in measure(path, lengths, options.threads, options.repeat)]
    files = [model_file(path) for path in paths]
    found = Attention(
        **made_by("attention", words), models=files, threads=options.threads, cells=cells, build=options.build,
        features=features(),
    )  # fmt: skip
    print(found.page())
    if options.out:
        keep(found, options.out / f"{options.out.name}.json")


if __name__ == "__main__":
    main()
