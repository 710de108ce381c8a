"""Grammars and schemas of the caller that llama.cpp would not survive."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.cases import load
from llama_cpp import LlamaGrammar

from pyspec.batch import Batch
from pyspec.batch.records import Record
from pyspec.errors import EngineError, InputError
from pyspec.grammar.gbnf import schema_grammar


@pytest.mark.parametrize(
    "text", ["root ::= [", 'root ::= root "a"', "root ::= " + "(" * 20_000, 'root ::= "\udcff"']
)
def test_grammars_that_cannot_be_parsed(text: str, tiny_ascii: Path) -> None:
    """llama.cpp would go on with none, or exhaust the stack."""
    with load(tiny_ascii) as llm, pytest.raises(InputError, match="grammar"):
        llm.create_completion("a", grammar=LlamaGrammar.from_string(text), max_tokens=2)


DEAD_END = 'root ::= "a" [^\\U00000000-\\U0010FFFF]'


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_a_grammar_that_comes_to_a_dead_end(draft: str, tiny_ascii: Path) -> None:
    """Where no token is allowed any more, llama.cpp would throw through C; the next answer is right."""
    with load(tiny_ascii, draft=draft) as llm:
        wanted = llm.create_completion("ab", max_tokens=4, temperature=0)["choices"]
        for temperature in (0.0, 0.8):
            with pytest.raises(EngineError, match="loosen the grammar"):
                llm.create_completion(
                    "ab", grammar=LlamaGrammar.from_string(DEAD_END), temperature=temperature
                )
        assert llm.create_completion("ab", max_tokens=4, temperature=0)["choices"] == wanted


def test_a_dead_end_is_its_own_records_failure(tiny_ascii: Path) -> None:
    """The others of a batch are answered."""
    records = [Record(id="dead", prompt="a", grammar=DEAD_END), Record(id="well", prompt="b")]
    with Batch(str(tiny_ascii), draft="none", parallel=2, n_ctx=64, n_threads=1) as batch:
        found = {result.id: result for result in batch.run(records)}
    assert found["dead"].error is not None
    assert found["dead"].error.type == "EngineError"
    assert found["well"].error is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 10**9}}},
        {"type": "string", "pattern": "^a{1000000000}$"},
        {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,1000000000}$"}]},
    ],
)
def test_schemas_that_would_be_written_out(schema: dict[str, object]) -> None:
    """The converter would write each repetition, which takes all memory there is."""
    with pytest.raises(InputError, match="more than 10000 times"):
        schema_grammar(schema)
