"""Answers in the threads of a pool: each contender's speed in the first thread, in others, and from piece to piece."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize("contender", ["llama_cpp", "pyspec:none", "pyspec"])
def test_each_way_to_answer_has_a_speed(script, tiny_ascii: Path, contender: str) -> None:
    pool = script("pool")
    llm = pool.opened(contender, SimpleNamespace(model=str(tiny_ascii), threads=1))
    figures = pool.measure(llm, 4)
    llm.close()
    assert list(figures) == ["first", "pool", "stream"]
    assert all(speed > 0.0 for speed in figures.values())


def test_what_a_pool_keeps_is_its_speed_over_the_first_threads(script) -> None:
    one = {"name": "pyspec", "first": 80.0, "pool": 40.0, "stream": 20.0}
    assert script("pool").PoolResults.kept(one) == 0.5
