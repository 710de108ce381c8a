"""What prompts begin with alike outlives a batch, in a file."""

from itertools import takewhile
from unittest.mock import Mock

import pytest
from helpers.fake_batch import texts
from helpers.tiny import F32
from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.kept import MIN_TOKENS, PrefixCache, common

SHARED = "once upon a time there was a king and he had "
WORDS = [SHARED + "ab", SHARED + "cde", SHARED + "f"]


@pytest.mark.parametrize("interactive", [False, True])
@pytest.mark.parametrize("parallel", [1, 2, 8])
@pytest.mark.parametrize("draft", ["none", "auto"])
def test_a_shared_beginning_is_read_by_the_first_process_alone(
    open_batch, tmp_path, read, interactive, parallel, draft
):
    options = {"interactive": interactive, "parallel": parallel, "draft": draft, **F32}
    first = open_batch(prompt_cache=tmp_path / "kept", **options)
    wanted = texts(first, WORDS)
    first.close()
    once = sum(read)
    read.clear()
    batch = open_batch(prompt_cache=tmp_path / "kept", **options)
    assert texts(batch, WORDS) == wanted
    assert sum(read) <= once - len(batch.target.tokenize(SHARED.encode())) + 4


def test_another_layout_takes_it_up(open_batch, tmp_path, read):
    path = tmp_path / "kept"
    wanted = []
    for parallel in (8, 1, 8):
        read.clear()
        batch = open_batch(parallel=parallel, prompt_cache=path, **F32)
        wanted.append(texts(batch, WORDS))
        batch.close()
    assert wanted[0] == wanted[1] == wanted[2]


def test_without_common_text_the_longest_is_kept(open_batch, tmp_path, read):
    path, word = tmp_path / "kept", "a long story about a cat that went to sea"
    options = {"interactive": True, "prompt_cache": path, **F32}
    first = open_batch(**options)
    answer = texts(first, [word])
    first.close()
    read.clear()
    batch = open_batch(**options)
    assert texts(batch, [word]) == answer
    assert sum(read) < len(batch.target.tokenize(word.encode()))


@pytest.mark.parametrize("parallel", [1, 8])
def test_what_a_sequence_holds_is_not_read_again_however_short(open_batch, read, parallel):
    batch = open_batch(parallel=parallel, interactive=True, draft="none", **F32)
    words = ["the king had a horse", "the king saw the sea"]
    own = [batch.target.tokenize(word.encode()) for word in words]
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*own, strict=False)))
    assert 0 < alike < MIN_TOKENS
    texts(batch, words[:1] * parallel)  # no sequence is empty any more
    read.clear()
    answer = texts(batch, words[1:])
    answered = len(batch.target.tokenize(answer[0].encode(), add_bos=False))
    assert sum(read) <= len(own[1]) - alike + answered


def ids(most, least=0):
    return st.lists(st.integers(0, 3), min_size=least, max_size=most)


@given(ids(40), ids(40, 1), ids(10), st.sampled_from([0, 512, 1 << 17]))
def test_of_anothers_text_only_what_is_public_is_taken(text, prompt, public, each):
    """However short the rest is: how soon an answer comes would tell what the other one said."""
    kept = PrefixCache(Mock(held=lambda *_: len(text)), 1, each, lambda: public, Mock())
    kept.take(0, text, "one", None, 0)
    kept.keep(0, text, len(text))
    mine, theirs = kept.left(0, prompt, "one"), kept.left(0, prompt, "two")
    assert mine == common(text, prompt)
    assert theirs == min(mine, common(public, prompt))
    assert kept.source(prompt, "two", {})[1] <= theirs


@pytest.mark.parametrize("parallel", [2, 8])
def test_what_is_asked_aside_costs_a_conversation_nothing(open_batch, read, parallel):
    """It begins like that, as an agent's do, and takes a place of its own: then the conversation goes on where it was."""
    story = SHARED + "a long way to go before he came to the sea"
    batch = open_batch(interactive=True, parallel=parallel, **F32)
    (told,) = texts(batch, [story])
    wanted = []
    for aside in ([], [SHARED + "ab"]):
        if aside:
            texts(batch, aside)
        read.clear()
        assert texts(batch, [story]) == [told]
        wanted.append(sum(read))
    assert wanted[0] == wanted[1]


def test_what_is_to_be_taken_over_is_forgotten_last():
    kept = PrefixCache(Mock(), 3, 0, lambda: (), Mock())
    for seq in range(3):
        kept.keep(seq, range(20), 9)
    kept.drop(20, spare=0)
    assert [len(kept.texts[seq]) for seq in range(3)] == [10, 0, 10]
