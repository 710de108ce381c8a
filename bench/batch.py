"""What a batch gains: tokens a second against a loop over llama_cpp.Llama and against llama-server.

    python bench/batch.py MODEL.gguf QUESTIONS.jsonl [--records 64] [--tokens 96] [--parallel 1,4,16]
        [--more lookup:16] [--server PATH/llama-server] [--draft auto] [--companion auto] [--threads 2] [--repeat 3]
        [--title TITLE] [--out DIR/NAME.json]

QUESTIONS has `turns` (the first one is asked) or `prompt` a line. Every way runs in a process of its
own, so that its peak memory is its own; the ways take turns, --repeat times, and the table has
medians. Temperature 0, strict verification, the same prompts as tokens for all. Memory is the peak
of the resident set, mapped weights included. llama-server is driven by 16 clients over HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

CLIENTS = 16
WAIT_S = 120


def main() -> None:
    """Measure all ways, print a Markdown table, and write page and results to --out."""
    options = arguments()
    ways = ["loop", *(["server"] if options.server else [])]
    for n in options.parallel.split(","):
        ways += [f"plain:{n}", f"speculative:{n}"]
    ways += options.more.split(",") if options.more else []
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(options.repeat):
        for way in ways:
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found[way].append(json.loads(done.stdout))
    publish(options, found)


def publish(options: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the results with what they depend on, and write them where --out says."""
    from pyspec.measure import batches  # noqa: PLC0415 - each way's process holds its own libraries only
    from pyspec.measure.setup import machine, model_file  # noqa: PLC0415 - as above

    words = [Path(word).name if os.sep in word else word for word in sys.argv]
    results = batches.BatchResults(
        title=options.title or f"Batch, {Path(options.model).stem}",
        command=" ".join(["python bench/batch.py", *map(shlex.quote, words[1:])]),
        day=datetime.now(timezone.utc).date().isoformat(),
        machine=machine(),
        threads=options.threads,
        target=model_file(Path(options.model)),
        records=options.records,
        max_tokens=options.tokens,
        repeat=options.repeat,
        ways=[batches.summary(way, runs) for way, runs in found.items()],
    )
    print(batches.batch_table(results))
    if options.out:
        batches.save(results, options.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("questions", type=Path)
    for name, value in {
        "records": 64,
        "tokens": 96,
        "threads": 2,
        "repeat": 3,
        "ctx": 2048,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, text in {"parallel": "1,4,16", "draft": "auto", "companion": "auto"}.items():
        parser.add_argument(f"--{name}", default=text)
    parser.add_argument("--server")
    parser.add_argument("--more", metavar="lookup:16,...", help="further ways")
    parser.add_argument("--title")
    parser.add_argument("--out", type=Path, help="NAME.json; the page goes beside it")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options)))
        raise SystemExit
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one way in this process."""
    kind, _, n = options.way.partition(":")
    texts = questions(options)
    if kind == "loop":
        return loop(options, texts)
    if kind == "server":
        return server(options, texts)
    return batch(options, texts, kind, int(n))


def questions(options: argparse.Namespace) -> list[str]:
    """The first turns."""
    lines = options.questions.read_text(encoding="utf-8").splitlines()[: options.records]
    rows = [json.loads(line) for line in lines]
    return [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]


def loop(options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """One prompt after another, as a program that knows llama-cpp-python would."""
    import llama_cpp  # noqa: PLC0415 - each way's process holds its own libraries only

    from pyspec.measure.memory import resident_peak  # noqa: PLC0415
    from pyspec.template import ChatTemplate, Message  # noqa: PLC0415

    threads = {"n_threads": options.threads, "n_threads_batch": options.threads}
    llm = llama_cpp.Llama(options.model, n_ctx=options.ctx, verbose=False, **threads)
    template = ChatTemplate.of(llm)
    prompts = [template.prompt([Message(role="user", content=text)]) for text in texts]
    next(llm.generate(prompts[0], temp=0.0))
    start, tokens = time.perf_counter(), 0
    for prompt in prompts:
        ends = llm.token_eos()
        for count, token in enumerate(llm.generate(prompt, temp=0.0), 1):
            if token == ends or count >= options.tokens:
                break
        tokens += count
    seconds = time.perf_counter() - start
    return {
        "tokens": tokens,
        "seconds": seconds,
        "peak": resident_peak(),
        "kv": kv_megabytes(options.model, options.ctx),
    }


def kv_megabytes(model: str, cells: int) -> float:
    """What so many KV cells take, 16 bits an entry."""
    from pyspec.store.header import read_header  # noqa: PLC0415 - as below

    header = read_header(model)
    heads = header.of_arch("attention.head_count")
    head = header.of_arch("attention.key_length") or header.of_arch("embedding_length") // heads
    width = head * (header.of_arch("attention.head_count_kv") or heads)
    return 4 * width * header.of_arch("block_count") * cells / 2**20


def batch(options: argparse.Namespace, texts: list[str], kind: str, n: int) -> dict[str, Any]:
    """`pyspec.Batch`, without drafts, with those asked for, or with lookup."""
    from pyspec.batch import Batch, Settings  # noqa: PLC0415
    from pyspec.measure.memory import resident_peak  # noqa: PLC0415

    words = {"plain": ("none", "none"), "lookup": ("lookup", "none")}
    draft, companion = words.get(kind, (options.draft, options.companion))
    with Batch(
        options.model,
        draft=draft,
        companion=companion,
        parallel=n,
        n_ctx=options.ctx,
        settings=Settings(max_tokens=options.tokens),
        n_threads=options.threads,
        n_threads_batch=options.threads,
    ) as answerer:
        start = time.perf_counter()
        tokens = sum(result.usage.completion_tokens for result in answerer.run(texts))
        seconds = time.perf_counter() - start
        stats = answerer.stats()
    kept = {key: stats[key] for key in ("outside_decodes", "accepted", "verified")}
    kv = kv_megabytes(options.model, stats["kv_cells"])
    return {"tokens": tokens, "seconds": seconds, "peak": resident_peak(), "kv": kv, **kept}


def server(options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """llama-server with 16 slots, driven by 16 clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [options.server, "-m", options.model, "-np", str(CLIENTS), "--port", str(port)]
    command += ["-c", str(CLIENTS * options.ctx), "-t", str(options.threads), "--log-disable"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(base)
        ask(base, texts[0], 1)
        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            tokens = sum(clients.map(lambda text: ask(base, text, options.tokens), texts))
        seconds = time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()
    return {"tokens": tokens, "seconds": seconds}


def wait_until_up(base: str) -> None:
    """Until /health answers."""
    for _ in range(10 * WAIT_S):
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=1):  # noqa: S310 - http on this machine
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("llama-server did not start")


def ask(base: str, text: str, tokens: int) -> int:
    """One chat completion; how many tokens came."""
    message = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(  # noqa: S310
        f"{base}/v1/chat/completions",
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return int(json.load(answer)["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()
