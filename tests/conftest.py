"""Fixtures that all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Helpers such as store/make_gguf.py are imported from here, whatever pytest's import mode.
if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of the default target, fetched once; PYSPEC_TEST_TARGET names another file."""
    from pyspec.store import resolve

    return os.environ.get("PYSPEC_TEST_TARGET") or str(resolve())


@pytest.fixture(scope="session")
def gemma() -> str:
    """Path of Gemma 3 270M (sliding-window attention, 262144 tokens), fetched once."""
    from pyspec.store import resolve

    return str(resolve("gemma-3-270m"))
