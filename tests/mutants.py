"""Changes one line of the package at a time, and says which changes no test notices.

    python tests/mutants.py [--jobs 2] [--only TEXT] [--log FILE]

Each mutant of mutants.txt is made in a copy of the clone, where the tests named with it run until one fails. Those in C
are built first. A line for each, and last how many survived; the exit status is 1 where one did that has no excuse.
With --log, an interrupted run goes on where it stopped. Takes about half an hour; .ci/weekly runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("pyspec", "native", "tests", "models", "bench", "pyproject.toml", "README.md", "LICENSE")
TIMEOUT_S = 240
START = (  # an editable installation would find the clone's package, whatever the path says
    "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'Redirecting' not in type(each).__name__]; "
    "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)
LIST = Path(__file__).with_name("mutants.txt")


class Mutant(NamedTuple):
    """A change: `old` stands once in the file, `new` is put in its place. tests: what should notice. excuse: why nothing can."""

    file: str
    tests: str
    old: str
    new: str
    excuse: str = ""

    @property
    def name(self) -> str:
        return f"{self.file}: {self.old.strip()} -> {self.new.strip() or 'nothing'}"


def read_mutants() -> list[Mutant]:
    found: list[Mutant] = []
    file = tests = ""
    lines: dict[str, list[str]] = {"-": [], "+": [], "=": []}

    def end() -> None:
        if lines["-"]:
            old, new, excuse = ("\n".join(part) for part in lines.values())
            found.append(Mutant(file, tests, old, new, excuse))
        for part in lines.values():
            part.clear()

    for line in LIST.read_text(encoding="utf-8").splitlines():
        sign = line[:1]
        if sign == "-" and lines["+"]:
            end()
        if sign in lines:
            lines[sign].append(line[2:])
        elif sign not in ("", "#"):
            end()
            file, _, tests = line.partition(": ")
    end()
    return found


class Workplace:
    """A copy of the clone, in which one mutant after another is made and taken back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # an extension built in the clone would hide C's mutants
        own = shutil.ignore_patterns("*.so")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=own)
            else:
                shutil.copy2(ROOT / name, folder / name)

    def survives(self, mutant: Mutant) -> bool:
        """Whether every test passes with it. Raises ValueError where the line is not there once."""
        path = self._folder / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: the line stands there {text.count(mutant.old)} times")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            return self._passes(mutant)
        finally:
            path.write_text(text, encoding="utf-8")

    def _passes(self, mutant: Mutant) -> bool:
        paths = [str(self._folder)]
        if mutant.file.startswith("native/"):
            paths = [str(self._folder / "site")]
            install = [
                "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--upgrade", "--target", *paths, ".",
            ]  # fmt: skip
            if self._run(*install):
                return False
        return not self._run("-c", START, "-q", "-x", "-n", "0", *mutant.tests.split(), paths=paths)

    def _run(self, *words: str, paths: Sequence[str] = ()) -> int:
        where = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, *words]
        with subprocess.Popen(
            command, cwd=self._folder, env=where, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                return process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return -1  # a test that never ends has noticed
            finally:  # with what it started: a changed loop may have no end
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """The command; its exit status is 1 where a mutant survived that is not known to be equivalent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="mutants whose name has this")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    known = options.log.read_text(encoding="utf-8") if options.log and options.log.exists() else ""
    asked = [
        each
        for each in read_mutants()
        if options.only in each.name and f" {each.name!r}\n" not in known
    ]
    survived = judge_all(asked, options.jobs, options.log)
    unknown = [mutant for mutant in survived if not mutant.excuse]
    sys.stdout.write(
        f"{len(survived)} of {len(asked)} survived, {len(unknown)} of them without an excuse\n"
    )
    return int(bool(unknown))


def judge_all(mutants: Sequence[Mutant], jobs: int, log: Path | None) -> list[Mutant]:
    """Those that survive; each is reported at once."""
    places: Queue[Workplace] = Queue()

    def judge(mutant: Mutant) -> bool:
        place = places.get()
        try:
            survived = place.survives(mutant)
        finally:
            places.put(place)
        line = f"{'SURVIVED' if survived else 'noticed'} {mutant.name!r}\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if log:
            with log.open("a", encoding="utf-8") as lines:
                lines.write(line)
        return survived

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for job in range(jobs):
            here = Path(folder, str(job))
            here.mkdir()
            places.put(Workplace(here))
        return [mutant for mutant, lives in zip(mutants, pool.map(judge, mutants)) if lives]


if __name__ == "__main__":
    sys.exit(main())
