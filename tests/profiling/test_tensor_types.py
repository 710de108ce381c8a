"""Figures of one model's tensor types, and which is the best."""

from __future__ import annotations

import pytest

from pyspec.errors import ModelInvalid
from pyspec.profiling.tensor_types import (
    PREFILL,
    ROWS,
    TypeFigures,
    best_type,
    measure_types,
    type_table,
)

TEXT = b"the quick brown fox jumps over the lazy dog " * 20


def figures(
    kind: str, one: float = 10.0, prefill: float = 1000.0, loss: float = 0.0
) -> TypeFigures:
    """A type whose 4 and 8 rows cost 2 and 3 times one."""
    rows = {1: one, 4: 2 * one, 8: 3 * one}
    return TypeFigures(kind, 1, rows, prefill, 3.0 + loss, loss, 1.0)


def test_a_copy_loses_nothing_and_a_worse_copy_does(tiny_target, tiny_draft, tmp_path):
    """The second file is compared with the first, on the same tokens."""
    files = {"original": tiny_target, "copy": tiny_target, "noisy": tiny_draft}
    found = {f.kind: f for f in measure_types(files, TEXT, threads=1)}
    assert (found["copy"].loss, found["copy"].same) == (0.0, 1.0)
    assert found["noisy"].same < 1.0
    assert found["noisy"].loss == pytest.approx(found["noisy"].nats - found["original"].nats)


def test_every_width_is_timed(tiny_target):
    (found,) = measure_types({"original": tiny_target}, TEXT, threads=1)
    assert list(found.rows) == list(ROWS)
    assert min(*found.rows.values(), found.prefill) > 0.0
    assert found.size == tiny_target.stat().st_size


def test_progress_ends_before_its_total(tiny_target):
    """Steps are counted, and named."""
    seen = []
    measure_types({"original": tiny_target}, TEXT, 1, lambda *step: seen.append(step))
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    assert seen[-1] == (len(seen) - 1, len(seen), "nats of original")


@pytest.mark.parametrize(
    ("other", "best"),
    [
        (figures("q8_0", prefill=500.0), "q8_0"),
        (figures("q4_0", one=5.0, loss=0.2), "original"),
        (figures("bf16", one=14.0, prefill=100.0), "original"),
        (figures("q4_k_m", one=10.2, prefill=500.0, loss=0.009), "q4_k_m"),
    ],
)
def test_the_best_type_loses_nothing_and_decodes_no_slower(other, best):
    """At most 0.01 nats a token, and one row at most 3 % more expensive; then the fastest."""
    assert best_type([figures("original"), other]).kind == best


def test_break_even_is_what_four_rows_cost_over_one():
    """Four rows at twice the cost of one: one of the drafted tokens must be accepted."""
    assert figures("q8_0").pays_from == 1.0
    table = type_table([figures("original"), figures("q8_0", prefill=500.0)]).markdown
    assert "q8_0 (best here)" in table
    assert "| 1.00 |" in table


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelInvalid, match=r"broken\.gguf"):
        measure_types({"original": path}, TEXT, 1)


def test_the_prefill_is_as_long_as_it_says(tiny_target):
    (found,) = measure_types({"original": tiny_target}, b"fox", threads=1)
    assert found.prefill > 0.0
    assert PREFILL == 512
