"""GBNF has the meaning that it has in llama.cpp."""

import ctypes
import json

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from helpers.matched import follows
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import llama_grammar

from pyspec.errors import InputError
from pyspec.grammar.languages import MAX_CHARACTERS, Constraint, of_gbnf, of_grammar
from pyspec.grammar.masks import CANDIDATES, Masks

WORDS = [
    "ab", "abc", "bc", "th", "he", '{"', '":', "tr", "ue", "12", "0.", "[[", "],", "e4", "O-O", "日",
    "本", "日本", "é",
]  # fmt: skip
"""Tokens of several characters, and of several bytes."""

SCHEMA = {
    "type": "object", "required": ["name", "tags", "kind"],
    "properties": {
        "name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "kind": {"enum": ["a", "b"]},
    },
}  # fmt: skip
GRAMMARS = {
    **{name: text for name, text in vars(llama_grammar).items() if name.endswith("_GBNF")},
    "a word that is the beginning of another": 'root ::= "a" "bc" | "ab" "d" | [a-z]* "a"',
    "a comment, and a rule in the next line": '# c\nroot   ::=\n  "ab"\n',
    "repetitions": 'root ::= ("ab" | [c-e]{2,3} | x?){1,4} "z"\nx ::= "q"{2} "b"* ',
    "classes": 'root ::= [^a-y"\\]]+ . [\\x41-\\u0043]? [-a]',
    "all but what no text has": 'root ::= [^\\uD800] "a"',
    "characters of several bytes": 'root ::= "日本" [^日]* [é語]',
    "nothing": 'root ::= x "a"\nx ::= | "b"',
    "groups over several lines": 'root ::= (\n "a"\n | "b" )\n',
    "nested repetitions": 'root ::= ((("a"?){3}){3} "b")*',
    "a schema that llama.cpp wrote": llama_grammar.json_schema_to_gbnf(json.dumps(SCHEMA)),
    "right recursion twice": 'root ::= "a" root "b" | "a" root "c" | "a"',
}


def llama_cpps(worded, sampler):
    rows = np.zeros(worded.n_vocab(), dtype=CANDIDATES)
    rows["id"] = np.arange(len(rows))
    data = rows.ctypes.data_as(llama_cpp.llama_token_data_p)
    array = llama_cpp.llama_token_data_array(data=data, size=len(rows), selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    return rows["logit"] != -np.inf


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_llama_cpps(name, seed, worded):
    """Token after token of a random text; but what is no text, `<s>`, is never a text's part here."""
    text, vocab, rng = GRAMMARS[name], worded._model.vocab, np.random.default_rng(seed)
    theirs = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    assert theirs
    ours = Masks(Constraint(of_gbnf(text)), worded)
    for _ in range(40):
        wanted, found = llama_cpps(worded, theirs), ours.permitted()
        wanted[:2] = False
        assert found.tolist() == wanted.tolist()
        token = int(rng.choice(np.flatnonzero(wanted)))
        if token == tiny.EOS:
            break
        llama_cpp.llama_sampler_accept(theirs, token)
        ours.accept(token)
    llama_cpp.llama_sampler_free(theirs)


def test_a_trigger_that_was_refused_is_over(worded):
    """What stood before it does not make another one with what follows."""
    found = Masks(Constraint(of_gbnf('root ::= "ab" "x"'), "ab"), worded)
    words = [*tiny.ASCII, *WORDS]
    for word in ("a", "bc", "b"):
        found.accept(words.index(word))
    assert found.permitted() is None


WRITTEN = r'root ::= | a ( ) * + ? {3} {2,} {0,9} [a-c] [^x] . "ab" "\"" b #c < {999}'
PIECES = [*WRITTEN.split(), "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_what_is_read_is_read_by_llama_cpp(worded, text):
    """It refuses more, such as rules that begin with themselves."""
    whole = f'root ::= "q" {text}\na ::= "c"\n'
    try:
        of_gbnf(whole)
    except InputError:
        vocab = worded._model.vocab
        assert not llama_cpp.llama_sampler_init_grammar(vocab, whole.encode(), b"root")


def test_a_rule_written_again_needs_what_it_names_last():
    """As llama.cpp reads it: the first one is gone."""
    assert of_gbnf('root ::= "q" a\na ::= b\na ::= "c"\n').rules
    with pytest.raises(InputError, match="no rule named 'b'"):
        of_gbnf('root ::= "q" a\na ::= "c"\na ::= b\n')


@pytest.mark.parametrize(
    "text", ["", "root ::= x", 'x ::= "a"', 'root ::= "a"\n | "b"', 'root ::= "\\q"', 'root ::= "a"{3000}', "root ::= *", 5,
             "root ::= [", 'root ::= "\udcff"', pytest.param("root ::= " + "(" * 20_000, id="deep"),
             pytest.param(f'root ::= "{"a" * (MAX_CHARACTERS + 1)}"', id="long")],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(text):
    with pytest.raises(InputError, match="grammar"):
        of_gbnf(text)


def test_a_token_may_be_named(worded):
    a, b = (worded.tokenize(char.encode(), add_bos=False)[-1] for char in "ab")
    language = of_gbnf(f'root ::= <[{a}]> !<[{a}]> "b"')
    assert follows(worded, language, [a, b, b])
    assert not follows(worded, language, [a, a, b])


def test_lark_is_known_by_its_first_rule(worded):
    for text in ("start: A\nA: /a+/", 'root ::= "a"+'):
        assert follows(worded, of_grammar(text), worded.tokenize(b"aa", add_bos=False)[-1:] * 2)
