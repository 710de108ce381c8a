"""Damaged files of every kind kill nothing: no way into the package dies, hangs or ends in a traceback.

Kinds: target (class, in a draft's place, batch), head (EAGLE-3), mtp (a model with a head of its own), lora,
charsmap (a tokenizer's table of characters), override (values that replace a header's), words (long texts by the names of all
tokenizers). A seed is KIND:NUMBER for a mutant, KIND:sound, or target:NAME with a name of `seeds.py`. Bodies of requests and
grammars are driven by test_doors.py.

PYSPEC_FUZZ_FILES is how many mutants of each kind slow tests try, 300 if not set; PYSPEC_FUZZ_SEEDS names more seeds to try.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from fuzz import bases
from fuzz.entries import FIRST, THEN
from fuzz.mutate import CHANGES, KINDS, mutant
from fuzz.seeds import NUMBERS, SEEDS
from fuzz.seeds import seed as named
from helpers.forked import fork, run_child

from pyspec.errors import PyspecError

TIMEOUT_S = 10.0
COUNT = int(os.environ.get("PYSPEC_FUZZ_FILES", "300"))
ASKED = os.environ.get("PYSPEC_FUZZ_SEEDS", "").split()
SOUND = "sound"


class Verdict(NamedTuple):
    """How one entry took one file: "answered", "refused", or what must not be."""

    seed: str
    entry: str
    kind: str
    detail: str = ""


def try_one(seed: str, entry: str, path: Path) -> Verdict:
    of = seed.partition(":")[0]

    def work(report: int) -> None:
        try:
            kind, detail = (FIRST[of] | THEN.get(of, {}))[entry](path), ""
        except PyspecError as error:
            kind, detail = "refused", f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
            kind, detail = "traceback", traceback.format_exc()[-1500:]
        os.write(report, f"{kind}\n{detail}".encode("utf-8", "replace")[:4000])
        os._exit(0)

    said, status, where = fork(work, TIMEOUT_S)
    if status is None:
        return Verdict(seed, entry, "hang", where)
    if os.WIFSIGNALED(status):
        return Verdict(seed, entry, "death", f"signal {os.WTERMSIG(status)}")
    kind, _, detail = said.partition("\n")
    return Verdict(seed, entry, kind or "death", detail or f"status {status}")


def try_all(seed: str, folder: Path) -> list[Verdict]:
    kind, _, which = seed.partition(":")
    path = folder / "mutant.gguf"
    if which == SOUND:
        bases.sound(kind).write(path)
    else:
        path.write_bytes(mutant(int(which), kind) if which.isdecimal() else named(which))
    found = [try_one(seed, entry, path) for entry in FIRST[kind]]
    if any(verdict.kind == "answered" for verdict in found):
        found += [try_one(seed, entry, path) for entry in THEN.get(kind, ())]
    return found


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A folder with the sound files that damaged ones are used with."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("target", "beside_head"):
        bases.sound(name).write(folder / name)
    return folder


@pytest.fixture(autouse=True)
def own_children(monkeypatch, tmp_path):
    """Trials of files in forks of this process, and what they find kept apart."""
    for module in ("pyspec.gguf.check", "pyspec.engine.models"):
        monkeypatch.setattr(f"{module}.run_child", run_child)
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))


def ways(seeds, folder):
    """Try the seeds; every file must be answered or refused. How often each entry did which."""
    verdicts = [verdict for seed in seeds for verdict in try_all(seed, folder)]
    assert [each for each in verdicts if each.kind not in ("answered", "refused")] == []
    return Counter(f"{verdict.entry} {verdict.kind}" for verdict in verdicts)


@pytest.mark.parametrize("seed", [*(f"target:{each}" for each in (*SEEDS, *NUMBERS)), *ASKED])
def test_earlier_faults(seed, beside):
    ways([seed], beside)


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_mutants(kind, part, beside):
    ways([f"{kind}:{number}" for number in range(3 * part, 3 * part + 3)], beside)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutants(kind, beside):
    found = ways([f"{kind}:{number}" for number in range(COUNT)], beside)
    assert found[f"{next(iter(FIRST[kind]))} answered"]  # else nothing was tried behind the header


@pytest.mark.parametrize("kind", CHANGES)
def test_sound_files_are_answered(kind, beside):
    found = ways([f"{kind}:{SOUND}"], beside)
    assert found == {f"{entry} answered": 1 for entry in (*FIRST[kind], *THEN.get(kind, ()))}
