"""The two copies of the C surface agree, and so do the numbers that Python repeats."""

from __future__ import annotations

import re
from pathlib import Path

from pyspec._lib import ffi, lib
from pyspec.engine.handle import MAX_DRAFT


def bare(text: str) -> list[str]:
    """C without comments, preprocessor and `extern "C"`, as a list of words and marks."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return re.findall(r"\w+|[^\w\s]", text)


def test_cdef_is_the_header(native: Path) -> None:
    """pyspec.cdef.h declares what pyspec.h declares, in the same order."""
    assert bare((native / "pyspec.cdef.h").read_text()) == bare((native / "pyspec.h").read_text())


def test_surface_has_one_prefix(native: Path) -> None:
    """Every function of the header begins with ps_."""
    calls = re.findall(r"^[\w ]+?\**(\w+)\(", (native / "pyspec.h").read_text(), flags=re.MULTILINE)
    assert calls
    assert [name for name in calls if not name.startswith("ps_")] == []


def test_longest_draft_is_the_same() -> None:
    """Python's MAX_DRAFT is C's PS_MAX_DRAFT."""
    assert lib.PS_MAX_DRAFT == MAX_DRAFT


def test_status_values_are_pinned() -> None:
    """Statuses are numbered without gaps from PS_OK = 0."""
    values = sorted(ffi.typeof("ps_status").elements)
    assert values == list(range(len(values)))
    assert lib.PS_OK == 0
