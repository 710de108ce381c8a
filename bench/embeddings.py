"""Embeddings of short texts over HTTP: texts a second of `pyspec serve --embed`, and of llama.cpp's server on the same file.

    python bench/embeddings.py MODEL --server bench/llama_server.py --out bench/results/embeddings/NAME.json

The texts are the first lines of 20 to 120 characters of this project's pages and modules, sent in requests of --each. Each run is
of a new process, the servers taking turns; the first request of a run is not timed. A model without own pooling gives the mean
of its last states in both. --slots and --rows are the peer's `-np` and `-b`, `-ub`; ours needs none. `least cosine` compares all
vectors with ours.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from common import Comparison, Figures, arguments, in_turns, medians, publish
from measure.contenders import ServerProcess, llama_server
from measure.report import table

_ABOUT = (__doc__ or "").strip()

Vectors = npt.NDArray[np.float32]

OPTIONS = {
    "server": "", "texts": 1000, "each": 100, "threads": 2, "repeat": 3, "slots": 16, "rows": 2048, "pooling": "mean",
    "title": "", "tokens": 0, "out": None,
}  # fmt: skip
OURS, PEER = "pyspec", "llama-server"


class Embeddings(Comparison):
    """Texts a second of servers. texts: how many; each: of a request; slots, rows: the peer's."""

    heading: ClassVar[str] = "Embeddings"
    intro: ClassVar[str] = _ABOUT
    work: ClassVar[str] = (
        "{0.texts} texts in requests of {0.each}; the peer with -np {0.slots}, -b and -ub {0.rows}"
    )
    how: ClassVar[str] = "medians of {0.repeat}, the servers taking turns"

    texts: int
    each: int
    slots: int
    rows: int

    def table(self) -> str:
        """The servers' rates, and those relative to ours."""
        ours = self.contenders[0]["texts_s"]
        head = ("server", "texts a second", "pyspec, times as fast", "tokens", "least cosine")
        return table(head, [
            [one["name"], f"{one['texts_s']:.0f}", f"{ours / one['texts_s']:.2f}", f"{one['tokens']:.0f}", f"{one['cosine']:.5f}"]
            for one in self.contenders
        ])  # fmt: skip


def short_texts(n: int) -> list[str]:
    """The first n different lines of 20 to 120 characters of the project's pages and modules."""
    root = Path(__file__).parents[1]
    pages = sorted(
        [*root.glob("*.md"), *root.glob(".docs/pages/*.md"), *root.glob("pyspec/**/*.py")]
    )
    lines = (line.strip() for page in pages for line in page.read_text("utf-8").splitlines())
    return list(dict.fromkeys(line for line in lines if 20 <= len(line) <= 120))[:n]


def _command(options: Namespace, name: str) -> list[str]:
    model, threads, rows = options.model, str(options.threads), str(options.rows)
    if name == OURS:
        beside = ["-c", "256", "--parallel", "1", "--draft", "none"]
        serve = [sys.executable, "-m", "pyspec", "serve", "-m", model, "--embed", model]
        return [*serve, "-t", threads, *beside]
    slots = ["-np", str(options.slots), "-c", str(512 * options.slots), "-b", rows, "-ub", rows]
    # in streams, it pools only what a text has in the last pass
    pooled = ["--embeddings", "--pooling", options.pooling, "--kv-unified"]
    return llama_server(options.server, model, ["-t", threads, "-tb", threads, *slots, *pooled])


def _vectors(process: ServerProcess, texts: Sequence[str]) -> tuple[Vectors, int]:
    """The vectors of a request, [texts, width], and its tokens."""
    body = {"input": list(texts), "model": "any"}
    told = json.loads(b"".join(process.lines("/v1/embeddings", body)))
    rows = sorted(told["data"], key=itemgetter("index"))
    return np.array([row["embedding"] for row in rows], np.float32), told["usage"]["prompt_tokens"]


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print; with --out, also write the page."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    texts = short_texts(options.texts)
    parts = [texts[i : i + options.each] for i in range(0, len(texts), options.each)]
    ours: list[Vectors] = []

    def measured(name: str) -> Figures:
        with closing(ServerProcess(_command(options, name))) as process:
            _vectors(process, parts[0])
            start = perf_counter()
            made = [_vectors(process, part) for part in parts]
            took = perf_counter() - start
        found = np.concatenate([vectors for vectors, _ in made])
        ours.append(found)
        tokens = sum(n for _, n in made)
        return {
            "texts_s": len(texts) / took,
            "tokens": tokens,
            "cosine": _least_cosine(found, ours[0]),
        }

    names = [OURS, *([PEER] if options.server else [])]
    found = {
        name: medians(runs) for name, runs in in_turns(names, options.repeat, measured).items()
    }
    own = {name: getattr(options, name) for name in ("each", "slots", "rows")}
    publish(
        Embeddings, "embeddings", options, words or sys.argv[1:], found, texts=len(texts), **own
    )


def _least_cosine(found: Vectors, ours: Vectors) -> float:
    both = np.linalg.norm(found, axis=1) * np.linalg.norm(ours, axis=1)
    return float((np.einsum("ij,ij->i", found, ours) / both).min())


if __name__ == "__main__":
    main()
