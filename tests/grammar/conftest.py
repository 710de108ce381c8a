"""A vocabulary of single bytes, and texts that are tried on languages."""

from collections.abc import Callable
from contextlib import closing

import llama_cpp
import pytest
from helpers import tiny
from helpers.matched import follows

from pyspec.engine.target import TargetLlama
from pyspec.grammar.languages import Language

Takes = Callable[[Language, str], bool]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("bytes") / "bytes.gguf"
    tiny.write_vocabulary(path, None, [])
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def takes(llama):
    return lambda language, text: follows(llama, language, [3 + byte for byte in text.encode()])


@pytest.fixture(scope="module")
def worded(request, tmp_path_factory):
    """A model whose tokens are characters and the `WORDS` of the file of tests."""
    path = tmp_path_factory.mktemp("words") / "words.gguf"
    tiny.write(path, tokens=[*tiny.ASCII, *request.module.WORDS])
    with closing(TargetLlama(str(path), trust=True, n_ctx=64, verbose=False)) as opened:
        yield opened
