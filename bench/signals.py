"""How long a command runs on after Ctrl-C or SIGTERM: while it reads a prompt, while it answers, and in a batch.

Each signal goes to a separate process, at a random moment up to --spread seconds after the command began what the case names. The
time is taken to the end of the process. It counts only if the signal ended the process (130 or 143); if the process had already
ended, as after a short answer, another one is sent.
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
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import arguments

from pyspec.measure.report import table

WAIT_S = 120
Case = Callable[[Namespace, Path], subprocess.Popen[bytes]]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def main(words: list[str] | None = None) -> None:
    """Measure every case and print a Markdown table."""
    how = {"sends": 20, "threads": 1, "cases": ",".join(CASES), "spread": 1.0}
    options = arguments(__doc__, words, "model", **how)
    rows = []
    for name in options.cases.split(","):
        for number in CODES:
            found = sends(CASES[name], options, number)
            cells = [f"{1e3 * x:.0f}" for x in np.quantile(found, (0.5, 0.95, 1.0))]
            rows.append([name, number.name, str(len(found)), *cells])
    print(table(["case", "signal", "sends", "p50 ms", "p95 ms", "most ms"], rows))


def sends(case: Case, options: Namespace, number: signal.Signals) -> list[float]:
    """Seconds for each of the requested signals. Ends the program if most come too late."""
    found: list[float] = []
    for i in range(3 * options.sends):
        with tempfile.TemporaryDirectory() as folder:
            child = case(options, Path(folder))
            time.sleep(random.Random(i).random() * options.spread)  # noqa: S311
            took = end(child, number)
        found += [] if took is None else [took]
        if len(found) == options.sends:
            return found
    sys.exit("most commands ended before the signal came: use a larger model")


def prefill(options: Namespace, _: Path) -> subprocess.Popen[bytes]:
    """A prompt of about 7,000 tokens, which takes seconds to read; the command handles SIGTERM itself while it answers."""
    child = start(options, "word " * 7000, "generate", "-c", "8192")
    status, caught = Path(f"/proc/{child.pid}/status"), re.compile(r"SigCgt:\s*([0-9a-f]+)")
    wait(lambda: int(caught.findall(status.read_text())[0], 16) & 1 << (signal.SIGTERM - 1))
    return child


def answer(options: Namespace, _: Path) -> subprocess.Popen[bytes]:
    """A short prompt with an endless answer that has begun."""
    words = ["generate", "-c", "4096", "-n", "-1", "--raw", "--temp", "1"]
    child = start(options, "Once upon a time", *words)
    if child.stdout is not None:
        child.stdout.read(1)
    return child


def batch(options: Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """A batch of many records, some of which are finished."""
    records, out = folder / "in.jsonl", folder / "out.jsonl"
    lines = (json.dumps({"id": i, "prompt": f"Tell me about {i}. " * 20}) for i in range(400))
    records.write_text("\n".join(lines))
    words = ["batch", str(records), "-o", str(out), "-n", "24", "--parallel", "4"]
    child, journal = start(options, "", *words), out.with_name("out.jsonl.journal")
    wait(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2)
    return child


CASES: dict[str, Case] = {"prefill": prefill, "answer": answer, "batch": batch}


def start(options: Namespace, stdin: str, *words: str) -> subprocess.Popen[bytes]:
    """Start the command as a user would."""
    more = ["-m", options.model, "-t", str(options.threads)]
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", "pyspec", *words, *more], env={**os.environ, "PYSPEC_CHATS": ""},
            stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def wait(until: Callable[[], object]) -> None:
    """Return when `until` is true; end the program if that takes too long."""
    latest = time.monotonic() + WAIT_S
    while not until():
        if time.monotonic() > latest:
            sys.exit("the command never came so far")
        time.sleep(0.005)


def end(child: subprocess.Popen[bytes], number: signal.Signals) -> float | None:
    """Send the signal; return the seconds until the process has ended, or None if it had ended by itself."""
    began = time.perf_counter()
    child.send_signal(number)
    child.wait(WAIT_S)
    took = time.perf_counter() - began
    if child.stdout is not None:
        child.stdout.close()
    if child.returncode not in (0, CODES[number]):
        sys.exit(f"it ended with {child.returncode}, not by {number.name}")
    return took if child.returncode else None


if __name__ == "__main__":
    main()
