"""The binding: handshake, statuses, and one llama.cpp in the process whatever the order of imports."""

import ctypes
import os
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest
from llama_cpp import llama_cpp as bound

from pyspec import _lib, errors
from pyspec._lib import check, ffi, lib

STATUSES = sorted(ffi.typeof("ps_status").elements.items())


def test_every_status_has_an_exception():
    assert set(_lib._EXCEPTIONS) == {value for value, name in STATUSES if name != "PS_OK"}


@pytest.mark.parametrize("value", [value for value, name in STATUSES if name != "PS_OK"])
def test_status_becomes_its_exception(value):
    kind, hint = _lib._EXCEPTIONS[value]
    with pytest.raises(kind, match=r"^reading the prompt: ") as raised:
        check(value, "reading the prompt")
    assert raised.value.hint == hint
    assert "unknown" not in raised.value.message
    assert raised.value.code == value


def test_unknown_status_is_an_engine_error():
    with pytest.raises(errors.EngineError, match="unknown status"):
        check(99)


def test_table_is_complete():
    """After import every llama.cpp function is bound, and only those that have a name can be."""
    out = ffi.new("ps_engine **")
    assert lib.ps_engine_open(1, 1, out) == lib.PS_OK
    lib.ps_engine_close(out[0])
    n = next(i for i in count() if lib.ps_api_name(i) == ffi.NULL)
    assert n > 20
    assert lib.ps_api_name(-1) == ffi.NULL
    assert lib.ps_api_bind(n, ffi.NULL) == lib.PS_E_ARG


def test_layout_of_another_llama_is_refused():
    class Longer(ctypes.Structure):
        _fields_ = [*bound.llama_batch._fields_, ("more", ctypes.c_int64)]

    other = SimpleNamespace(
        llama_batch=Longer,
        llama_token_data=bound.llama_token_data,
        llama_token_data_array=bound.llama_token_data_array,
    )
    with pytest.raises(ImportError, match=r"compiled with llama_batch at 56 bytes.* has 64$"):
        _lib._check_layout(other)


def test_missing_symbol_is_refused():
    libc = ctypes.CDLL(None)
    with pytest.raises(ImportError, match=r"pyspec calls llama_decode, but .* does not have it"):
        _lib._bind(SimpleNamespace(_name=libc._name))
    _lib._bind(bound._lib)


def test_an_extension_of_another_header_is_refused():
    with pytest.raises(ImportError, match="pip install -e"):
        _lib._check_key("0123", "4567")
    _lib._check_key("", "4567")


def test_supported_version_is_the_pinned_one():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'"llama-cpp-python=={_lib.LLAMA_CPP_VERSION}"' in text


BOTH = """
import {first}
import {second}
import pyspec._lib as ours
from llama_cpp import llama_cpp as theirs
assert ours.lib.ps_engine_open(1, 1, ours.ffi.new("ps_engine **")) == 0
maps = open("/proc/self/maps").read().split() if __import__("sys").platform == "linux" else []
copies = {{path for path in maps if "libllama." in path}}
print(theirs._lib._name, len(copies), copies)
assert len(copies) <= 1, copies
"""


def run(first, second, **environment):
    """Import both in a fresh interpreter, in this order, away from the sources; what it prints."""
    command = [sys.executable, "-c", BOTH.format(first=first, second=second)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "order", [("llama_cpp", "pyspec"), ("pyspec", "llama_cpp"), ("pyspec._lib", "llama_cpp")]
)
def test_order_of_imports_does_not_matter(order):
    """One libllama is loaded, whoever comes first."""
    run(*order)


def test_library_path_is_heeded(tmp_path):
    """With LLAMA_CPP_LIB_PATH the extension calls the library from there."""
    elsewhere = tmp_path / "libraries"
    shutil.copytree(Path(llama_cpp.__file__).parent / "lib", elsewhere)
    printed = run("pyspec._lib", "llama_cpp", LLAMA_CPP_LIB_PATH=str(elsewhere))
    assert printed.startswith(str(elsewhere))


def test_unbuilt_source_folder_says_so(tmp_path):
    """Imported from its sources, where no extension lies, pyspec says what to do in one sentence."""
    shutil.copytree(
        Path(_lib.__file__).parent,
        tmp_path / "pyspec",
        ignore=shutil.ignore_patterns("*.so", "*.pyd"),
    )
    code = "import sys; sys.meta_path = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]; import pyspec._lib"
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); " + code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: pyspec was imported from {tmp_path}")
    assert "pip install ." in last
