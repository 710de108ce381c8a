"""Grammars and schemas of the caller that take much, or cannot be followed to an end."""

from typing import Any

import pytest
from faults.cases import load
from llama_cpp import LlamaGrammar

from pyspec.batch import Batch
from pyspec.errors import InputError
from pyspec.requests.records import Record
from pyspec.text.completions import format_language

DEAD_END = 'root ::= "a" [^\\U00000000-\\U0010FFFF]'


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_a_grammar_that_comes_to_a_dead_end(draft, tiny_ascii):
    """Where no token is allowed any more, llama.cpp would throw through C; the next answer is right."""
    with load(tiny_ascii, draft=draft) as llm:
        wanted = llm.create_completion("ab", max_tokens=4, temperature=0)["choices"]
        for text, temperature in ((DEAD_END, 0.0), (DEAD_END, 0.8), ('root ::= root "a"', 0.0)):
            grammar = LlamaGrammar.from_string(text)
            with pytest.raises(InputError, match="grammar"):
                llm.create_completion("ab", grammar=grammar, temperature=temperature)
        assert llm.create_completion("ab", max_tokens=4, temperature=0)["choices"] == wanted


def test_a_dead_end_is_its_own_records_failure(tiny_ascii):
    records = [Record(id="dead", prompt="a", grammar=DEAD_END), Record(id="well", prompt="b")]
    with Batch(str(tiny_ascii), draft="none", parallel=2, n_ctx=64, n_threads=1) as batch:
        found = {result.id: result for result in batch.run(records)}
    assert found["dead"].error.type == "InputError"
    assert found["well"].error is None


NESTED: Any = {}
for _ in range(5000):
    NESTED = {"items": NESTED}
CHAIN = {
    f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
    for i in range(900)
}
EXPENSIVE: dict[str, dict[str, Any]] = {
    "20 KB of brackets": {"type": "grammar", "grammar": "root ::= " + "[" * 20_000},
    "nested repetitions": {"type": "grammar", "grammar": 'root ::= ((("a"?){100}){100}){100}'},
    "60,000 alternatives": {
        "type": "grammar", "grammar": "root ::= " + " | ".join(f'"a{i}"' for i in range(60_000)),
    },
    "10,000 rules deep": {
        "type": "grammar", "grammar": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(9000)) + "r9000: /b/",
    },
    "a regular expression of many brackets": {"type": "regex", "regex": "(" * 20_000},
    "a pattern with nested repetitions": {"type": "regex", "regex": "(((a?){1000}){1000}){1000}"},
    "many choices": {"type": "choice", "choice": [f"a{i}" for i in range(60_000)]},
    "a schema nested 5000 deep": {"type": "json_object", "schema": NESTED},
    "a chain of references": {"type": "json_object", "schema": {"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d900": {}}}},
    "references of references": {
        "type": "json_object",
        "schema": {"allOf": [{"$ref": "#/$defs/a"}] * 2000, "$defs": {"a": {"properties": {f"p{i}": {} for i in range(500)}}}},
    },
    "a list of many": {"type": "json_object", "schema": {"type": "array", "minItems": 10**9, "items": {"type": "integer"}}},
    "a text of many": {"type": "json_object", "schema": {"type": "string", "minLength": 10**9}},
}  # fmt: skip


@pytest.fixture(scope="module")
def llm(tiny_ascii):
    with load(tiny_ascii) as opened:
        yield opened


@pytest.mark.parametrize("name", EXPENSIVE)
def test_what_takes_much_is_refused_or_followed(name, llm):
    """And the process lives on: some of these exhausted the stack, or all memory."""
    try:
        language = format_language(EXPENSIVE[name])
        assert language is not None
        llm.create_chat_completion(
            [{"role": "user", "content": "a"}], response_format=EXPENSIVE[name], max_tokens=8
        )
    except InputError as error:
        assert len(str(error)) < 500  # noqa: PT017 - either is right
