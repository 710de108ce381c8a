"""Damaged files of every kind kill nothing: no way into the package dies, hangs or ends in a traceback."""

from collections import Counter

import pytest
from fuzz import drive
from fuzz.entries import FIRST, THEN
from fuzz.mutate import CHANGES, KINDS
from fuzz.seeds import NUMBERS, SEEDS
from helpers.forked import run_child


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    drive.write_beside(folder)
    return folder


@pytest.fixture(autouse=True)
def own_children(monkeypatch, tmp_path):
    """Trials of files in forks of this process, and what they find kept apart."""
    for module in ("pyspec.gguf.check", "pyspec.engine.models"):
        monkeypatch.setattr(f"{module}.run_child", run_child)
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))


def ways(seeds, folder):
    """Drive the seeds; every file must be answered or refused. How often each entry did which."""
    verdicts = [verdict for seed in seeds for verdict in drive.try_all(seed, folder)]
    assert [verdict for verdict in verdicts if not verdict.good] == []
    return Counter(f"{verdict.entry} {verdict.kind}" for verdict in verdicts)


@pytest.mark.parametrize("seed", [*SEEDS, *map(str, NUMBERS)])
def test_earlier_faults(seed, beside):
    ways([seed], beside)


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_mutants(kind, part, beside):
    ways([f"{kind}:{number}" for number in range(3 * part, 3 * part + 3)], beside)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutants(kind, beside):
    """300; a long run is `python tests/fuzz/drive.py --kind all --count 10000`."""
    found = ways([f"{kind}:{number}" for number in range(300)], beside)
    assert found[f"{next(iter(FIRST[kind]))} answered"]  # else nothing was tried behind the header


@pytest.mark.parametrize("kind", CHANGES)
def test_sound_files_are_answered(kind, beside):
    found = ways([f"{kind}:{drive.SOUND}"], beside)
    assert found == {f"{entry} answered": 1 for entry in (*FIRST[kind], *THEN.get(kind, ()))}
