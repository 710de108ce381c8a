"""Prompts: words that must stay text, and texts between two others, at each interface."""

import pytest
from helpers import tiny
from helpers.asking import ask
from helpers.server_here import opening
from hypothesis import given
from hypothesis import strategies as st

from pyspec.errors import InputError
from pyspec.text.prompts import ControlWords, FillIn, OtherFile

MARKS = ("<pre>", "<suf>", "<mid>", "<rep>", "<sep>")
FIRST = len(tiny.ASCII)
PRE, SUF, MID, REP, SEP = range(FIRST, FIRST + 5)


def ids(text):
    return [tiny.ASCII.index("\u2581" if char == " " else char) for char in text]


@pytest.fixture(scope="module")
def model(tiny_folder):
    fills = dict(zip(("pre", "suf", "mid", "rep", "sep"), range(FIRST, FIRST + 5)))
    return tiny.write(tiny_folder / "fills.gguf", tokens=tiny.ASCII, marks=MARKS, fills=fills)


@pytest.fixture
def llm(model, open_llama):
    return open_llama(model, trust=True, draft="lookup")


def test_a_prompt_is_prefix_suffix_and_the_gap(llm, model, open_llama):
    """What a user wrote is text, whatever it looks like."""
    assert FillIn(llm).tokens("ab", "c") == [PRE, *ids("ab"), SUF, *ids("c"), MID]
    assert FillIn(llm).tokens("<suf>", "") == [PRE, *ids("<suf>"), SUF, MID]
    # the suffix first, where asked for
    other = FillIn(open_llama(model, trust=True, spm_infill=True))
    assert other.tokens("ab", "c") == [SUF, *ids("c"), PRE, *ids("ab"), MID]


def test_other_files_come_in_front(llm):
    made = FillIn(llm).fitting("a", "b", [OtherFile("x.c", "int")], 100)
    front = [REP, *ids("project"), 3, SEP, *ids("x.c"), 3, *ids("int"), SEP, *ids("file"), 3]
    assert made == [*front, PRE, *ids("a"), SUF, *ids("b"), MID]


@pytest.mark.parametrize(
    ("room", "before", "after"), [(103, 60, 40), (43, 30, 10), (23, 15, 5), (3, 0, 0)]
)
def test_what_is_near_the_gap_stays(llm, room, before, after):
    """The prefix's end, and the suffix's beginning; at least a quarter for the suffix."""
    prefix, suffix = "a" * 59 + "b", "c" + "d" * 39
    made = FillIn(llm).fitting(prefix, suffix, [OtherFile("x", "y" * 500)], room)
    at, end = made.index(PRE), made.index(SUF)
    assert len(made) == room
    assert made[at + 1 : end] == ids(prefix[60 - before :])
    assert made[end + 1 : -1] == ids(suffix[:after])


def test_the_class_fills_in(llm):
    """A `Llama` would put token 0 there (it has no ids of these tokens)."""
    made = llm.create_completion("ab", suffix="c", max_tokens=12, temperature=0)
    same = llm.create_completion(FillIn(llm).tokens("ab", "c"), max_tokens=12, temperature=0)
    assert made["choices"][0]["text"] == same["choices"][0]["text"] != ""
    assert made["usage"]["prompt_tokens"] == 6


def test_what_has_no_such_tokens_refuses(open_llama, tiny_ascii):
    with pytest.raises(InputError, match="no tokens for filling in"):
        open_llama(tiny_ascii).create_completion("ab", suffix="c")
    with opening(tiny_ascii) as start:
        told = ask(start(), "/infill", 400, input_prefix="a", input_suffix="b")
    assert "no tokens for filling in" in told["error"]["message"]


@pytest.fixture(scope="module")
def server(model, tiny_ascii):
    with opening(tiny_ascii) as start:
        yield start(model)


def test_three_doors_say_the_same(server, llm):
    (choice,) = llm.create_completion("ab", suffix="c", max_tokens=8, temperature=0)["choices"]
    plain = ask(server, "/v1/completions", prompt="ab", suffix="c", max_tokens=8)
    infill = ask(server, "/infill", input_prefix="a", prompt="b", input_suffix="c", n_predict=8)
    options = {"num_predict": 8}
    ollama = ask(server, "/api/generate", prompt="ab", suffix="c", options=options, stream=False)
    assert plain["choices"][0]["text"] == infill["content"] == ollama["response"] == choice["text"]


def test_infill_takes_files_and_more_than_fits(server):
    given = {"input_extra": [{"filename": "x.c", "text": "y" * 3000}], "n_predict": 4}
    told = ask(server, "/infill", input_prefix="a" * 2000, input_suffix="c", **given)
    assert 1000 < told["tokens_evaluated"] <= 1020
    told = ask(server, "/v1/completions", 400, prompt="a" * 2000, suffix="c")
    assert told["error"]["code"] == "context_length_exceeded"
    # an empty prefix is a gap too
    assert ask(server, "/infill", input_suffix="c", n_predict=2)["tokens_evaluated"] == 4
    told = ask(server, "/v1/completions", prompt="", suffix="c", max_tokens=2)
    assert told["usage"]["prompt_tokens"] == 4


TEXTS = st.text("<|a]", max_size=6)
WORDS = st.lists(st.text("<|a]", min_size=1, max_size=4), max_size=5, unique=True)


@given(words=WORDS, text=TEXTS)
def test_neighbours_that_could_complete_a_word_are_known(words, text):
    """Behind a text that ends with a word's first part, and before one that begins with two characters of its last."""
    ends = [text[n:] for n in range(len(text))]
    starts = [text[:n] for n in range(2, len(text) + 1)]
    behind = any(end != word and word.startswith(end) for word in words for end in ends)
    before = any(start != word and word.endswith(start) for word in words for start in starts)
    made = ControlWords({word: n for n, word in enumerate(words)})
    assert made.joins(text) == [len(text)] * behind + [0] * before
