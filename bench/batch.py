"""What a batch gains: tokens a second compared with a loop over llama_cpp.Llama and with llama-server.

The prompts are the first turns of the first --records of QUESTIONS, in Spec-Bench's format, or with --spread of as many from all
over the file. Every contender runs in its own process, so its peak memory is its own. The contenders take turns, --repeat times,
and the table has medians. Temperature 0, strict verification, the same prompt tokens for all. Memory is the peak of the resident
set, mapped weights included. llama-server is driven by 16 clients over HTTP.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from common import Comparison, Figures, arguments, compare, resident
from measure.contenders import Files, InProcess
from measure.questions import Question, load_questions
from measure.report import table
from measure.tasks import Options

from pyspec.gguf.header import read_header
from pyspec.text.template import ChatTemplate

CLIENTS = 16
LOOP = "loop"
OPTIONS = {
    "records": 64, "tokens": 96, "parallel": "1,4,16", "more": "", "server": None, "draft": "auto", "threads": 2,
    "repeat": 3, "ctx": 2048, "spread": False, "title": "", "out": None, "contender": "",
}  # fmt: skip
HEAD = ("contender", "tokens", "tokens/s", "of the loop", "of plain", "peak MB", "KV MB", "beyond KV",
        "outside decodes", "accepted")  # fmt: skip


NOT_KNOWN = dict.fromkeys(("peak", "kv", "outside", "accepted", "verified"), 0)


class BatchResults(Comparison, kw_only=True):
    """Results for one target. For each contender: tokens, rate (a second), peak and kv (MB) and what else is known of it."""

    heading = "Batches"
    intro = (
        '"loop" is llama_cpp.Llama, one prompt after another; "server" is llama-server with 16 slots and 16 clients; '
        '"plain:N" is `pyspec batch --draft none --parallel N`; "speculative:N" the same with the drafts that `auto` chooses; '
        '"lookup:N" always with lookup; "exact:N" with `--exact`, where neighbours do not affect a text. Peak is the resident '
        "set, weights included; beyond KV is its excess over the loop's, with both KV caches subtracted."
    )

    work = "{0.records} records, at most {0.max_tokens} tokens each"

    records: int

    def table(self) -> str:
        """Speed, memory and accepted tokens, a row for each contender."""
        return table(HEAD, [self._row(one) for one in self.contenders])

    def _row(self, one: dict[str, Any]) -> list[str]:
        loop, plain = self.find(LOOP), self.find(f"plain:{one['name'].partition(':')[2]}")
        own, beyond = one["peak"] - one["kv"], "-"
        if one["peak"] and loop and loop["peak"]:
            beyond = f"{100 * (own - loop['peak'] + loop['kv']) / loop['peak']:+.0f} %"
        return [
            one["name"],
            f"{one['tokens']:.0f}",
            f"{one['rate']:.1f}",
            *(f"{one['rate'] / base['rate']:.2f}" if base else "-" for base in (loop, plain)),
            *(f"{one[key]:.0f}" if one["peak"] else "-" for key in ("peak", "kv")),
            beyond,
            f"{100 * one['outside']:.1f} %" if one["outside"] else "-",
            f"{one['accepted']:.0f} of {one['verified']:.0f}" if one["verified"] else "-",
        ]


def main(words: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    contenders = [LOOP, *(["server"] if options.server else [])]
    contenders += [
        f"{kind}:{n}" for n in options.parallel.split(",") for kind in ("plain", "speculative")
    ]
    contenders += options.more.split(",") if options.more else []
    compare(
        BatchResults, "batch", options, words, contenders, lambda one: measure(options, one), alone=True,
        records=options.records,
    )  # fmt: skip


def measure(options: Namespace, contender: str) -> Figures:
    """Run one contender in this process."""
    kind, _, n = contender.partition(":")
    asked = load_questions(Path(options.questions))
    most = min(options.records, len(asked))
    # questions of one kind follow each other: spread takes from all kinds, else the first ones
    asked = [asked[i * len(asked) // most if options.spread else i] for i in range(most)]
    texts = [question.turns[0] for question in asked]
    if kind == LOOP:
        found = loop(options, asked)
    else:
        found = server(options, texts) if kind == "server" else batch(options, texts, kind, int(n))
    return {**NOT_KNOWN, **found, "rate": found["tokens"] / found["seconds"]}


def loop(options: Namespace, asked: Sequence[Question]) -> Figures:
    """Answer one prompt after another, as a program on llama-cpp-python would."""
    files = Files(Path(options.model), None, options.ctx, options.threads)
    with closing(InProcess("llama_cpp", files)) as peer:
        template = ChatTemplate.of(peer.llm)
        prompts = [question.prompt(template) for question in asked]
        peer.answer(prompts[0], 1, Options())
        start = time.perf_counter()
        tokens = sum(len(peer.answer(each, options.tokens, Options()).tokens) for each in prompts)
        seconds = time.perf_counter() - start
    kv = kv_megabytes(options.model, options.ctx)
    return {"tokens": tokens, "seconds": seconds, "peak": resident("VmHWM"), "kv": kv}


def kv_megabytes(model: str, cells: int) -> float:
    """Megabytes of this many KV cells, at 16 bits an entry."""
    header = read_header(model)
    heads = header.of_arch("attention.head_count")
    head = header.of_arch("attention.key_length") or header.of_arch("embedding_length") // heads
    width = head * (header.of_arch("attention.head_count_kv") or heads)
    return 4 * width * header.of_arch("block_count") * cells / 2**20


def batch(options: Namespace, texts: list[str], kind: str, n: int) -> Figures:
    """Answer with `pyspec.Batch`: without drafts, with the given draft, with lookup, or exact."""
    from pyspec.batch import Batch, Settings  # noqa: PLC0415 - counts in the memory of those alone that need it

    draft = {"plain": "none", "exact": "none", "lookup": "lookup"}.get(kind, options.draft)
    with Batch(
        options.model, draft=draft, companion="none", parallel=n, n_ctx=options.ctx,
        settings=Settings(max_tokens=options.tokens), n_threads=options.threads, exact=kind == "exact",
    ) as answerer:  # fmt: skip
        start = time.perf_counter()
        tokens = sum(result.usage.completion_tokens for result in answerer.run(texts))
        seconds = time.perf_counter() - start
        stats = answerer.stats()
    kept = {key: stats[key] for key in ("accepted", "verified")}
    kept |= {
        "outside": stats["outside_decodes"],
        "kv": kv_megabytes(options.model, stats["kv_cells"]),
    }
    return {"tokens": tokens, "seconds": seconds, "peak": resident("VmHWM"), **kept}


def server(options: Namespace, texts: list[str]) -> Figures:
    """Answer with llama-server, 16 slots driven by 16 clients as in bench/serve.py."""
    from serve import PEER, measure  # noqa: PLC0415 - as above

    asked = {**vars(options), "clients": CLIENTS, "requests": len(texts)}
    found = measure(Namespace(**asked), PEER, texts)
    if found["errors"]:
        raise SystemExit("llama-server failed")
    return {key: found[key] for key in ("tokens", "seconds")}


if __name__ == "__main__":
    main()
