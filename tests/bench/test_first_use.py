"""The first answer by part: each part is counted once, and the page has them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_page_has_every_part_and_the_sum(script, monkeypatch, tmp_path: Path, capsys) -> None:
    """The median of each part; the whole command is no part."""
    module = script("first_use")
    runs = iter([1.0, 3.0, 2.0])

    def measured(_: int, _wheels: Path) -> dict[str, float]:
        return dict.fromkeys((*module.PARTS, module.WHOLE, module.INSTALL), next(runs))

    monkeypatch.setattr(module, "measure", measured)
    module.main(["--repeat", "3", "--out", str(tmp_path)])
    page = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")][2:]
    assert [seconds for _, seconds in rows] == [*["2.0"] * 7, "14.0", *["2.0"] * 3]
    assert (tmp_path / "README.md").read_text().strip() == page.strip()


def test_parts_are_told_apart_by_what_is_said(
    script, monkeypatch, tiny_ascii: Path, tmp_path: Path
) -> None:
    """Fetching, converting and timing as progress names them; what comes after is loading and the answer."""
    module = script("first_use")
    told = {"FIRST_USE_BEGAN": "0.0", "PYSPEC_CACHE": str(tmp_path)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)

    def resolve(_: None, heard) -> str:
        for what in ("fetching x", "converting x to q8_0", "timing x as q8_0", "converting y"):
            heard(what, 0, 0)
        return str(tiny_ascii)

    monkeypatch.setattr("pyspec.store.locate.resolve", resolve)
    found = module.parts(2)
    assert set(found) == set(module.PARTS[1:])
    assert min(found.values()) > 0


def test_a_command_has_a_folder_of_its_own(script, tmp_path: Path) -> None:
    module = script("first_use")
    out = tmp_path / "out.json"
    code = f"import json, os, sys; json.dump([sys.argv[1:], os.environ['PYSPEC_CACHE']], open({str(out)!r}, 'w'))"
    assert module.timed([sys.executable, "-c", code], ["x"], cache=True) > 0
    words, cache = json.loads(out.read_text())
    assert words == ["x"]
    assert not Path(cache).exists()
    with pytest.raises(subprocess.CalledProcessError):
        module.timed([sys.executable, "-c", "import sys; sys.exit(3)"], [])
    assert os.environ.get("PYSPEC_CACHE") != cache
