"""Ours and theirs over one file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "parity.py"


@pytest.fixture
def pair(open_llama, open_plain, tiny_ascii):
    """(ours, theirs) over one file, ours with itself as draft, and with llama.cpp's random numbers."""
    ours = open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=1024, sampling="llama.cpp")
    return ours, open_plain(tiny_ascii, n_ctx=1024)


@pytest.fixture
def parity(monkeypatch):
    """bench/parity.py as a module: the prompts of comparisons with the original, and how they are made."""
    monkeypatch.syspath_prepend(
        str(SCRIPT.parent)
    )  # scripts find each other as they do when started
    spec = importlib.util.spec_from_file_location("parity", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
