"""How long a command lives after Ctrl-C or SIGTERM: while it reads a prompt, while it answers, and in a batch.

    python bench/signals.py MODEL.gguf [--sends 20] [--threads 1] [--cases prefill,answer,batch] [--spread 1.0]

Each send is a process of its own; the signal comes at a random moment, up to --spread seconds after the command began
to do what the case names, and the time is taken to the end of the process. A send counts only if the process ended
by the signal (130 or 143); where it had ended by itself, as a short answer does, another one is sent.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from common import arguments

from pyspec.measure.report import table

if TYPE_CHECKING:
    from argparse import Namespace

WAIT_S = 120
Case = Callable[["Namespace", signal.Signals, random.Random], "float | None"]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def main(words: list[str] | None = None) -> None:
    """Measure every case and print a Markdown table."""
    how = {"sends": 20, "threads": 1, "cases": ",".join(CASES), "spread": 1.0}
    options = arguments(__doc__, words, "model", **how)
    rows = []
    for name in options.cases.split(","):
        for number in CODES:
            found = sends(CASES[name], options, number)
            p95 = quantiles([*found, *found], n=20, method="inclusive")[-1]  # it wants two at least
            cells = [f"{1e3 * x:.0f}" for x in (median(found), p95, max(found))]
            rows.append([name, number.name, str(len(found)), *cells])
    print(table(["case", "signal", "sends", "p50 ms", "p95 ms", "most ms"], rows))


def sends(case: Case, options: Namespace, number: signal.Signals) -> list[float]:
    """Seconds of as many sends as are asked for. Ends the program where most come too late."""
    found: list[float] = []
    for i in range(3 * options.sends):
        took = case(options, number, random.Random(i))  # noqa: S311
        found += [] if took is None else [took]
        if len(found) == options.sends:
            return found
    sys.exit("most commands ended before the signal came: use a larger model")


def prefill(options: Namespace, number: signal.Signals, rng: random.Random) -> float | None:
    """A prompt of some 7,000 tokens, which takes seconds to read."""
    child = start(options, "generate", "-c", "8192")
    give(child, "word " * 7000)
    handles(child)
    time.sleep(rng.random() * options.spread)
    return end(child, number)


def answer(options: Namespace, number: signal.Signals, rng: random.Random) -> float | None:
    """A short prompt with an answer that has no end."""
    child = start(options, "generate", "-c", "4096", "-n", "-1", "--raw", "--temp", "1")
    give(child, "Once upon a time")
    read(child)
    time.sleep(rng.random() * options.spread)
    return end(child, number)


def batch(options: Namespace, number: signal.Signals, rng: random.Random) -> float | None:
    """Many records, some of which are done."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "in.jsonl")
        lines = (json.dumps({"id": i, "prompt": f"Tell me about {i}. " * 20}) for i in range(400))
        records.write_text("\n".join(lines))
        out = Path(folder, "out.jsonl")
        child = start(options, "batch", str(records), "-o", str(out), "-n", "24", "--parallel", "4")
        journal = out.with_name("out.jsonl.journal")
        wait(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2)
        time.sleep(rng.random() * options.spread)
        return end(child, number)


CASES = {"prefill": prefill, "answer": answer, "batch": batch}


def start(options: Namespace, *words: str) -> subprocess.Popen[bytes]:
    """The command as a person runs it."""
    command = [
        sys.executable,
        "-m",
        "pyspec",
        *words,
        "-m",
        options.model,
        "-t",
        str(options.threads),
    ]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env={**os.environ, "PYSPEC_CHATS": ""}, **streams)  # type: ignore[call-overload, no-any-return]


def give(child: subprocess.Popen[bytes], prompt: str) -> None:
    """Write the prompt to stdin and close it."""
    if child.stdin is not None:
        child.stdin.write(prompt.encode())
        child.stdin.close()


def read(child: subprocess.Popen[bytes]) -> None:
    """The first byte of stdout."""
    if child.stdout is not None:
        child.stdout.read(1)


def handles(child: subprocess.Popen[bytes]) -> None:
    """Wait until it handles SIGTERM by itself, which it does while it answers."""
    status = Path(f"/proc/{child.pid}/status")
    caught = re.compile(r"SigCgt:\s*([0-9a-f]+)")
    wait(lambda: int(caught.findall(status.read_text())[0], 16) & 1 << (signal.SIGTERM - 1))


def wait(until: Callable[[], object]) -> None:
    """Return when `until` is true; end the program if that takes too long."""
    latest = time.monotonic() + WAIT_S
    while not until():
        if time.monotonic() > latest:
            sys.exit("the command never came so far")
        time.sleep(0.005)


def end(child: subprocess.Popen[bytes], number: signal.Signals) -> float | None:
    """Send the signal; seconds until the process is gone, None where it went by itself."""
    began = time.perf_counter()
    child.send_signal(number)
    child.wait(WAIT_S)
    took = time.perf_counter() - began
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()
    if child.returncode not in (0, CODES[number]):
        sys.exit(f"it ended with {child.returncode}, not by {number.name}")
    return took if child.returncode else None


if __name__ == "__main__":
    main()
