"""What cffi reads of the C surface, its key, and the numbers that Python repeats."""

import re
import runpy

import pytest

from pyspec._lib import ffi, lib
from pyspec._version import interface_key
from pyspec.sampling.options import MAX_DRAFT


@pytest.fixture
def cdef(native):
    return runpy.run_path(str(native / "cdef.py"))


def test_the_extension_is_of_this_header(native):
    assert ffi.string(lib.ps_key()).decode() == interface_key(native.parent)


@pytest.mark.parametrize(("old", "new", "same"), [
    ("/* an allocation failed */", "/* no memory */", True),
    ("PS_E_NOMEM = 2,     ", "PS_E_NOMEM = 2, ", True),
    ("PS_E_NOMEM = 2", "PS_E_NOMEM = 3", False),
    ("float z2;", "double z2;", False),
])  # fmt: skip
def test_the_key_is_of_declarations(native, cdef, old, new, same):
    header = (native / "pyspec.h").read_text()
    assert old in header
    assert (cdef["key"](header) == cdef["key"](header.replace(old, new))) is same


def test_nothing_is_declared_for_the_preprocessor(native, cdef):
    text = cdef["declarations"]((native / "pyspec.h").read_text())
    assert "#" not in text
    assert "/*" not in text
    assert "ps_accept(" in text


def test_surface_has_one_prefix(native):
    calls = re.findall(r"^[\w ]+?\**(\w+)\(", (native / "pyspec.h").read_text(), flags=re.MULTILINE)
    assert calls
    assert [name for name in calls if not name.startswith("ps_")] == []


def test_longest_draft_is_the_same():
    assert lib.PS_MAX_DRAFT == MAX_DRAFT


def test_status_values_are_pinned():
    values = sorted(ffi.typeof("ps_status").elements)
    assert values == list(range(len(values)))
    assert lib.PS_OK == 0
