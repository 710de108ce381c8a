"""What a batch gains: tokens a second against a loop over llama_cpp.Llama and against llama-server.

    python bench/batch.py MODEL.gguf QUESTIONS.jsonl [--records 64] [--tokens 96] [--parallel 1,4,16]
        [--more lookup:16] [--server PATH/llama-server] [--draft auto] [--threads 2] [--repeat 3]
        [--spread] [--title TITLE] [--out DIR/NAME.json]

QUESTIONS has `turns` (the first one is asked) or `prompt` a line; the first --records are asked, or as many
from all over the file with --spread.
Every contender runs in a process of its own, so that its peak memory is its own; they take turns,
--repeat times, and the table has medians. Temperature 0, strict verification, the same prompts as
tokens for all. Memory is the peak of the resident set, mapped weights included. llama-server is
driven by 16 clients over HTTP.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from comparison import Comparison, circumstances, made, publish

from pyspec.measure.report import table
from pyspec.measure.usage import resident_peak

if TYPE_CHECKING:
    from collections.abc import Sequence

CLIENTS = 16
LOOP = "loop"
INTRO = (
    '"loop" is llama_cpp.Llama, one prompt after another; "server" is llama-server with 16 slots and 16 clients; '
    '"plain:N" is `pyspec batch --draft none --parallel N`; "speculative:N" the same with the drafts that `auto` stands '
    'for; "lookup:N" with lookup in any case; "exact:N" with `--exact`, whose texts no neighbour changes. Peak is the '
    "resident set, weights included; beyond KV is what it has over the loop's, without the KV cells of both."
)
HEAD = ("contender", "tokens", "tokens/s", "of the loop", "of plain", "peak MB", "KV MB", "beyond KV",
        "outside decodes", "accepted")  # fmt: skip


class Figures(msgspec.Struct):
    """What a contender took for all records; medians over runs. rate: tokens a second; peak, kv: MB, 0 where not known."""

    name: str
    tokens: float
    rate: float
    peak: float = 0.0
    kv: float = 0.0
    outside: float = 0.0
    accepted: int = 0
    verified: int = 0


class BatchResults(Comparison, kw_only=True):
    """A run over one target, as `NAME.json` beside the page."""

    records: int
    contenders: list[Figures]

    def find(self, name: str) -> Figures | None:
        """A contender's figures by its name."""
        return next((one for one in self.contenders if one.name == name), None)


def summary(name: str, runs: Sequence[dict[str, float]]) -> Figures:
    """A contender's medians; a run has tokens, seconds and what else was measured."""
    last = runs[-1]
    middle = {key: median(run.get(key, 0.0) for run in runs) for key in ("tokens", "peak", "kv")}
    rate = median(run["tokens"] / run["seconds"] for run in runs)
    outside = median(run.get("outside_decodes", 0.0) for run in runs)
    counts = {key: int(last.get(key, 0)) for key in ("accepted", "verified")}
    return Figures(name=name, rate=rate, outside=outside, **middle, **counts)


def load(folder: Path) -> list[BatchResults]:
    """All results in a folder, by file name."""
    decode = msgspec.json.Decoder(BatchResults).decode
    return [decode(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def write_page(folder: Path) -> None:
    """The page of all results in a folder, and of the pictures beside them."""
    parts = ["# Batches", INTRO]
    for found in load(folder):
        what = f"{found.records} records, at most {found.max_tokens} tokens each"
        parts += [f"## {found.title}", made(found, what), batch_table(found)]
    parts += [f"![{path.stem}]({path.name})" for path in sorted(folder.glob("*.svg"))]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def batch_table(found: BatchResults) -> str:
    """Speed, memory and what was accepted, a row a contender."""
    loop = found.find(LOOP)
    return table(
        HEAD,
        [
            _row(one, loop, found.find(f"plain:{one.name.partition(':')[2]}"))
            for one in found.contenders
        ],
    )


def _row(one: Figures, loop: Figures | None, plain: Figures | None) -> list[str]:
    beyond = "-"
    if one.peak and loop and loop.peak:
        beyond = f"{100 * (one.peak - one.kv - loop.peak + loop.kv) / loop.peak:+.0f} %"
    return [
        one.name,
        f"{one.tokens:.0f}",
        f"{one.rate:.1f}",
        *(f"{one.rate / base.rate:.2f}" if base else "-" for base in (loop, plain)),
        *(f"{value:.0f}" if one.peak else "-" for value in (one.peak, one.kv)),
        beyond,
        f"{100 * one.outside:.1f} %" if one.outside else "-",
        f"{one.accepted} of {one.verified}" if one.verified else "-",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(given)
    if options.contender:
        print(json.dumps(measure(options)))
        return
    contenders = [LOOP, *(["server"] if options.server else [])]
    contenders += [
        f"{kind}:{n}" for n in options.parallel.split(",") for kind in ("plain", "speculative")
    ]
    contenders += options.more.split(",") if options.more else []
    found: dict[str, list[dict[str, Any]]] = {one: [] for one in contenders}
    for _ in range(options.repeat):
        for one in contenders:
            command = [sys.executable, __file__, *given, "--contender", one]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found[one].append(json.loads(done.stdout))
            print(one, done.stdout.decode().strip(), file=sys.stderr, flush=True)
    results = BatchResults(
        **circumstances("batch", options, given),
        records=options.records,
        contenders=[summary(one, runs) for one, runs in found.items()],
    )
    publish(results, batch_table(results), options.out, write_page)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("questions", type=Path)
    numbers = {"records": 64, "tokens": 96, "threads": 2, "repeat": 3, "ctx": 2048}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, text in {
        "parallel": "1,4,16",
        "draft": "auto",
        "more": "",
        "server": "",
        "title": "",
    }.items():
        parser.add_argument(f"--{name}", default=text)
    parser.add_argument(
        "--spread", action="store_true", help="records from all over the file, not its first ones"
    )
    parser.add_argument("--out", type=Path, help="NAME.json; the page goes beside it")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one contender in this process."""
    kind, _, n = options.contender.partition(":")
    lines = options.questions.read_text(encoding="utf-8").splitlines()
    chosen = spread(lines, options.records) if options.spread else lines[: options.records]
    rows = [json.loads(line) for line in chosen]
    texts = [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]
    if kind == LOOP:
        return loop(options, texts)
    return server(options, texts) if kind == "server" else batch(options, texts, kind, int(n))


def spread(lines: list[str], n: int) -> list[str]:
    """So many of the lines, evenly over the file: its kinds follow each other."""
    n = min(n, len(lines))
    return [lines[i * len(lines) // n] for i in range(n)]


def loop(options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """One prompt after another, as a program that knows llama-cpp-python would."""
    from pyspec.measure.usage import PlainLlama  # noqa: PLC0415 - each contender's process loads what it needs
    from pyspec.store.check import extra_buffers  # noqa: PLC0415 - as above
    from pyspec.template import ChatTemplate, Message  # noqa: PLC0415 - as above

    threads = {"n_threads": options.threads, "n_threads_batch": options.threads}
    kind = {"extra_buffers": extra_buffers(), "verbose": False}
    llm = PlainLlama(options.model, n_ctx=options.ctx, **kind, **threads)
    template = ChatTemplate.of(llm)
    prompts = [template.prompt([Message(role="user", content=text)]) for text in texts]
    next(llm.generate(prompts[0], temp=0.0))
    start, tokens = time.perf_counter(), 0
    for prompt in prompts:
        for count, token in enumerate(llm.generate(prompt, temp=0.0), 1):
            if token == llm.token_eos() or count >= options.tokens:
                break
        tokens += count
    seconds = time.perf_counter() - start
    kv = kv_megabytes(options.model, options.ctx)
    return {"tokens": tokens, "seconds": seconds, "peak": resident_peak(), "kv": kv}


def kv_megabytes(model: str, cells: int) -> float:
    """What so many KV cells take, 16 bits an entry."""
    from pyspec.store.header import read_header  # noqa: PLC0415 - as above

    header = read_header(model)
    heads = header.of_arch("attention.head_count")
    head = header.of_arch("attention.key_length") or header.of_arch("embedding_length") // heads
    width = head * (header.of_arch("attention.head_count_kv") or heads)
    return 4 * width * header.of_arch("block_count") * cells / 2**20


def batch(options: argparse.Namespace, texts: list[str], kind: str, n: int) -> dict[str, Any]:
    """`pyspec.Batch`: without drafts, with those asked for, with lookup, or exact."""
    from pyspec.batch import Batch, Settings  # noqa: PLC0415 - as above

    draft = {"plain": "none", "exact": "none", "lookup": "lookup"}.get(kind, options.draft)
    with Batch(
        options.model, draft=draft, companion="none", parallel=n, n_ctx=options.ctx,
        settings=Settings(max_tokens=options.tokens), n_threads=options.threads,
        n_threads_batch=options.threads, exact=kind == "exact",
    ) as answerer:  # fmt: skip
        start = time.perf_counter()
        tokens = sum(result.usage.completion_tokens for result in answerer.run(texts))
        seconds = time.perf_counter() - start
        stats = answerer.stats()
    kept = {key: stats[key] for key in ("outside_decodes", "accepted", "verified")}
    kv = kv_megabytes(options.model, stats["kv_cells"])
    return {"tokens": tokens, "seconds": seconds, "peak": resident_peak(), "kv": kv, **kept}


def server(options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """llama-server with 16 slots, driven by 16 clients."""
    from pyspec.measure.peers import ServerProcess  # noqa: PLC0415 - as above

    more = ["-np", str(CLIENTS), "-c", str(CLIENTS * options.ctx), "-t", str(options.threads)]
    with ServerProcess(Path(options.server), options.model, more) as process:
        asked = [
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": options.tokens,
                "temperature": 0,
            }
            for text in texts
        ]
        process.ask("/v1/chat/completions", {**asked[0], "max_tokens": 1})
        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = list(
                clients.map(lambda body: process.ask("/v1/chat/completions", body), asked)
            )
        seconds = time.perf_counter() - start
    tokens = sum(int(answer["usage"]["completion_tokens"]) for answer in answers)
    return {"tokens": tokens, "seconds": seconds}


if __name__ == "__main__":
    main()
