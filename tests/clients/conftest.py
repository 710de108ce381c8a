"""Other people's programs over one file: with `llama_cpp.Llama`, and with ours put in its place."""

import contextlib

import pytest

OPTIONS = {
    "n_ctx": 1024,
    "n_threads": 1,
    "n_threads_batch": 1,
    "flash_attn": True,
    "verbose": False,
}


def accepted(llm):
    """Drafted tokens that the last answer of an object took; None has none to show, being the original."""
    return llm.last_speculation["accepted"] if hasattr(llm, "last_speculation") else 0


@contextlib.contextmanager
def ours(**defaults):
    """`llama_cpp.Llama` makes our objects inside."""
    import pyspec

    pyspec.install(**defaults)
    try:
        yield
    finally:
        pyspec.uninstall()


@pytest.fixture
def both(tiny_ascii):
    """Runs a client twice: (what it gives with the original, what it gives with ours). draft: what ours drafts with."""

    def run(client, draft=None):
        theirs = client()
        with ours(draft=str(draft or tiny_ascii), companion="none", length="fixed:4"):
            return theirs, client()

    return run
