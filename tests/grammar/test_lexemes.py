"""Repeated characters become one word where no text is taken otherwise."""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspec.errors import InputError
from pyspec.grammar import gbnf
from pyspec.grammar.gbnf import of_gbnf
from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.masks import Masks

WORDS = ["ab", "ba", "aa", '"a', 'b"', '",', "abc", "cc"]
PARTS = st.sampled_from(
    ['"a"', '"b"', '"ab"', "[ab]", "[^a]", "[a-c]", '"\\""', '[^"]', "x", "y", '""', "."]
)


def grown(inner: Any) -> Any:
    times = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*"])
    return (
        st.lists(inner, min_size=1, max_size=3).map(" ".join)
        | st.lists(inner, min_size=1, max_size=2).map(lambda ways: f"({' | '.join(ways)})")
        | st.builds(lambda part, n: f"({part}){n}", inner, times)
        | st.builds(lambda part, n: f"{part}{n}", PARTS, times)
    )


BODIES = st.recursive(PARTS, grown, max_leaves=5)


def plain(text: str) -> Language:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gbnf, "with_words", lambda rules, _: rules)
        return of_gbnf(text)


@settings(max_examples=60)
@given(root=BODIES, x=BODIES, y=BODIES, seed=st.integers(0, 99))
def test_masks_are_those_of_single_characters(
    worded: Any, root: str, x: str, y: str, seed: int
) -> None:
    """Token after token of a random text."""
    text, rng = f"root ::= {root}\nx ::= {x}\ny ::= {y}\n", np.random.default_rng(seed)
    try:
        ours, alone = (Masks(Constraint(made), worded) for made in (of_gbnf(text), plain(text)))
    except InputError:
        assume(False)  # nothing satisfies it
    for _ in range(12):
        found, wanted = ours.permitted(), alone.permitted()
        assert found is not None
        assert wanted is not None
        assert found.tolist() == wanted.tolist()
        left = np.flatnonzero(wanted[:-1])
        token = int(rng.choice(left)) if len(left) else tiny.EOS
        if token == tiny.EOS:
            break
        ours.accept(token)
        alone.accept(token)


JSON = llama_cpp.llama_grammar.JSON_GBNF


def test_texts_of_json_are_words() -> None:
    """In llama.cpp's own grammar."""
    assert "/(?:" in of_gbnf(JSON).rules
    assert "/(?:" not in plain(JSON).rules


@pytest.mark.parametrize(
    "text",
    [
        'root ::= [a-z]* "a"', "root ::= [a-z]+ [a-z]+", 'root ::= [a-z]* "!" | "tr2"', "root ::= x [ab]*\nx ::= [a]*",
        'root ::= ("a"? "b"?)* "c"', 'root ::= ("(" root ")")*', "root ::= <[5]>*",
    ],
)  # fmt: skip
def test_what_may_be_taken_for_something_else_is_no_word(text: str) -> None:
    assert of_gbnf(text).rules == plain(text).rules


def test_a_grammar_with_too_many_states_is_left_as_it_is() -> None:
    many = " | ".join(f'"a{n}" [^"]* "b{n}"' for n in range(900))
    assert of_gbnf(f"root ::= {many}").rules == plain(f"root ::= {many}").rules
