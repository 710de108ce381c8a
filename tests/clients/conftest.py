"""Other people's programs over one file: with `llama_cpp.Llama`, and with ours put in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def ours(**defaults: Any) -> Iterator[None]:
    """`llama_cpp.Llama` makes our objects inside."""
    import pyspec

    pyspec.install(**defaults)
    try:
        yield
    finally:
        pyspec.uninstall()


@pytest.fixture
def both(tiny_ascii: Any) -> Callable[..., tuple[Any, Any]]:
    """Runs a client twice: (what it gives with the original, what it gives with ours). draft: what ours drafts with."""

    def run(client: Callable[[], Any], draft: Any = None) -> tuple[Any, Any]:
        theirs = client()
        with ours(draft=str(draft or tiny_ascii), companion="none", length="fixed:4"):
            return theirs, client()

    return run
