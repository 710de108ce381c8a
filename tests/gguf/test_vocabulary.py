"""Which vocabularies may draft for each other: llama.cpp's test, by hashes of files."""

from typing import Any

import pytest
from helpers import tiny
from helpers.make_gguf import ARR, tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from pyspec.gguf.header import facts_of
from pyspec.gguf.reader import parse_header
from pyspec.gguf.vocabulary import FIRST_COMPARED, MAX_DIFFERENCE, read_vocabulary

MANY = [*tiny.TOKENS, *(f"<{i}>" for i in range(300))]


def changed(at):
    return [*MANY[:at], "other", *MANY[at + 1 :]]


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "the same": ({}, {}, True),
    "another BOS, none added": ({}, {"bos": 5}, True),
    "no BOS key, none added": ({}, {"bos": None}, True),
    "another BOS, added": ({"adds": (True, False)}, {"bos": 5, "adds": (True, False)}, False),
    "no BOS key, added": ({"adds": (True, False)}, {"bos": None, "adds": (True, False)}, True),
    "BOS added by one": ({"adds": (True, False)}, {}, False),
    "another EOS, none added": ({}, {"eos": 7}, True),
    "another EOS, added": ({"adds": (False, True)}, {"eos": 7, "adds": (False, True)}, False),
    "EOS added by one": ({}, {"adds": (False, True)}, False),
}
"""What differs, and whether llama.cpp lets the one draft for the other (common/speculative.cpp)."""


@pytest.mark.parametrize("what", PAIRS)
def test_pairs(tmp_path, what):
    *sides, fits = PAIRS[what]
    one, two = (
        facts_of(
            tiny.write(tmp_path / f"{i}.gguf", n_layer=1, **{"tokens": MANY, **side})
        ).vocabulary
        for i, side in enumerate(sides)
    )
    assert one.fits(two) == two.fits(one) == fits


def test_another_type_of_tokenizer(tmp_path):
    """Equal texts mean other tokens there."""
    files = [
        tiny.write_vocabulary(tmp_path / f"{model}.gguf", None, [], model=model)
        for model in ("gpt2", "llama")
    ]
    one, two = (read_vocabulary(parse_header(file)) for file in files)
    assert not one.fits(two)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")

    def read(size, odd):
        path = folder / f"{size}-{odd}.gguf"
        if not path.exists():
            words = [f"word{i}" if i != odd else "odd" for i in range(size)]
            tiny.write(path, tokens=words, n_layer=1)
        return read_vocabulary(parse_header(path))

    return read


@given(
    size=st.integers(100, 700), more=st.integers(-140, 140), odd=st.integers(0, 700),
)  # fmt: skip
def test_hashes_say_what_comparing_each_token_says(made, size, more, odd):
    other = max(6, size + more)
    equal = odd < FIRST_COMPARED or odd >= min(size, other)
    fits = abs(size - other) <= MAX_DIFFERENCE and equal
    assert made(size, -1).fits(made(other, odd)) == fits


def test_more_kinds_than_tokens(tmp_path):
    """What llama.cpp does not read of a list is no token."""
    file = tiny_llama()
    _, (of, kinds) = file.kv["tokenizer.ggml.token_type"]
    file.kv["tokenizer.ggml.token_type"] = (ARR, (of, [*kinds, 3, 3, 4]))
    path = file.write(tmp_path / "m.gguf")
    facts = facts_of(path)
    assert [i for i, _ in facts.vocabulary.marks] == [1, 2]
