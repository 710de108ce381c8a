"""What strangers send, at random: bodies of requests and grammars are answered or refused, and nothing else happens.

PYSPEC_FUZZ_DOORS is how many of each; 60 if not set.
"""

import json
import os
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.batch import Batch
from pyspec.engine.answer import Answer
from pyspec.errors import PyspecError
from pyspec.grammar.languages import Constraint, of_gbnf
from pyspec.grammar.masks import check_constraint
from pyspec.requests.bodies import read_body, records_of

COUNT = int(os.environ.get("PYSPEC_FUZZ_DOORS", "60"))
many = settings(max_examples=COUNT)


def words(text):
    return text.split(" ")


WORDS = words(
    "user assistant system tool function developer auto none required text json_object json_schema object array string "
    "integer name f type properties anyOf $ref #/$defs/a allowed_tools root a"
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**33), st.floats(), st.sampled_from(WORDS), st.text(max_size=6)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FIELDS = words(
    "model stop n stream stream_options response_format speculation max_tokens max_completion_tokens seed grammar temperature "
    "top_k top_p min_p repeat_penalty presence_penalty frequency_penalty logit_bias logprobs top_logprobs tools tool_choice "
    "parallel_tool_calls functions function_call sampling dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
    "dry_sequence_breakers xtc_probability xtc_threshold dynatemp_range dynatemp_exponent "
    "json_schema structured_outputs repetition_penalty min_tokens modalities"
)
functions = st.fixed_dictionaries({"name": st.just("f")}, optional={"parameters": values})
tools = st.lists(st.fixed_dictionaries({"function": functions | values}) | values, max_size=3)
calls = st.lists(
    st.fixed_dictionaries(
        {"function": functions | values | st.just({"name": "f", "arguments": "{"})}
    )
    | values,
    max_size=2,
)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS), "content": st.text(max_size=5) | values},
    optional={"tool_calls": calls | values, "function_call": values},
)
chats = st.fixed_dictionaries(
    {"messages": st.lists(turns | values, max_size=4) | values},
    optional={**dict.fromkeys(FIELDS, values), "tools": tools, "functions": tools},
)
texts = st.fixed_dictionaries(
    {"prompt": st.text(max_size=5) | values}, optional=dict.fromkeys(FIELDS, values)
)


@pytest.fixture(scope="module")
def batch(tiny_ascii):
    with Batch(str(tiny_ascii), draft="none", n_ctx=256, parallel=1, n_threads=1) as made:
        yield made


def understand(batch, path, body):
    data = json.dumps(body, allow_nan=False, default=str).encode("utf-8", "surrogatepass")
    with suppress(PyspecError):
        read = read_body(path, data)
        for record in records_of(read):
            assert isinstance(batch.maker.answer(0, record), Answer)


def finite(value):
    """JSON has no NaN."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return msgspec.json.decode(msgspec.json.encode(value))
    return value


@many
@given(chat=chats, text=texts)
def test_bodies(batch, chat, text):
    understand(batch, "/v1/chat/completions", finite(chat))
    understand(batch, "/v1/completions", finite(text))


PIECES = words(
    'root ::= | a ( ) * + ? {3} {2,} {0,9} [a-c] [^x] . "ab" "\\"" \\ \n \n b ::= b root #c < > <[3]> !<[4]> {999} ((('
)
grammars = st.lists(st.sampled_from(PIECES), max_size=24).map(" ".join) | st.text(max_size=30)


@many
@given(text=grammars)
def test_grammars(batch, text):
    with suppress(PyspecError):
        check_constraint(Constraint(of_gbnf("root ::= " + text)), batch.target)
