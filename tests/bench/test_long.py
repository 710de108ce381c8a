"""bench/long.py times a long prompt beside peers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.usefixtures("in_forks")
def test_a_long_prompt_is_timed_beside_its_peer(script, tiny_ascii: Path, capsys) -> None:
    """A row a contender; "auto" says which attention it chose."""
    words = ["--contenders", "pyspec,llama_cpp", "--prompt", "40", "--tokens", "9", "--repeat", "1"]
    script("long").main([str(tiny_ascii), *words])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[4]) for row in rows] == [
        ("| pyspec", "flash |"),
        ("| llama_cpp", "its own |"),
    ]
    assert rows[0][3] == "1.00"
    assert float(rows[1][3]) > 0.0
