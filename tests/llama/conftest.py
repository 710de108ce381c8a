"""Ours and theirs over one file."""

import pytest


@pytest.fixture
def pair(open_llama, open_plain, tiny_ascii):
    """(ours, theirs) over one file, ours with itself as draft, and with llama.cpp's random numbers."""
    ours = open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=1024, sampling="llama.cpp")
    return ours, open_plain(tiny_ascii, n_ctx=1024)
