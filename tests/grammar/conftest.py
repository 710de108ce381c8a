"""A vocabulary of single bytes, and texts that are tried on languages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import pytest
import tiny
from matched import follows

from pyspec.grammar.languages import Language

Takes = Callable[[Language, str], bool]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A vocabulary of all bytes, without a model."""
    path = tmp_path_factory.mktemp("bytes") / "bytes.gguf"
    tiny.write_vocabulary(path, None, [])
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def takes(llama: Any) -> Takes:
    """Says whether a text follows a language and may end."""
    return lambda language, text: follows(llama, language, [3 + byte for byte in text.encode()])
