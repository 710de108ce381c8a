"""Grammars of the caller that llama.cpp would not survive."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.cases import load
from llama_cpp import LlamaGrammar

from pyspec.errors import InputError


@pytest.mark.parametrize(
    "text", ["root ::= [", 'root ::= root "a"', "root ::= " + "(" * 20_000, 'root ::= "\udcff"']
)
def test_grammars_that_cannot_be_parsed(text: str, tiny_ascii: Path) -> None:
    """llama.cpp would go on with none, or exhaust the stack."""
    with load(tiny_ascii) as llm, pytest.raises(InputError, match="grammar"):
        llm.create_completion("a", grammar=LlamaGrammar.from_string(text), max_tokens=2)
