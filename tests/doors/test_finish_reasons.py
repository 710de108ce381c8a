"""Why answers end, in the words of each door."""

import pytest
from helpers import scripted, tiny
from helpers.doors import EVERY, N_CTX, QUESTION

OPENAIS = {"class": "length", "serve": "length"}
"""Its word for an answer that the context ends."""


@pytest.mark.parametrize("most", [1, 7])
def test_an_answer_of_as_many_tokens_as_allowed_was_cut(door, most):
    reply = door(max_tokens=most)
    assert (reply.finish, reply.tokens) == ("length", most)
    assert reply.text == door().text[:most]


@pytest.mark.parametrize("name", ["generate", "batch", "serve"])
def test_no_tokens_are_an_answer(doors, name):
    reply = doors[name](max_tokens=0)
    assert (reply.text, reply.finish, reply.tokens) == ("", "length", 0)


@pytest.mark.parametrize("name", ["class", "generate", "batch", "serve"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_stop_string_ends_an_answer_before_it(doors, name, alone):
    whole = doors[name]().text
    at = next(i for i in range(4, 12) if whole.index(whole[i : i + 2]) == i)
    reply = doors[name](
        stop=[whole[at : at + 2]] if alone else [whole[at + 3 : at + 5], whole[at : at + 2]]
    )
    assert (reply.text, reply.finish) == (whole[:at], "stop")


@pytest.fixture(scope="module")
def ending(doors, tiny_folder):
    """The model once more, with another end token: the one that its answer has first at the place that is told."""
    whole = doors["class"]().text
    at = next(i for i in range(5, 16) if whole.index(whole[i]) == i)
    path = tiny_folder / "ending-doors.gguf"
    return tiny.write(
        path, tokens=tiny.ASCII, template=scripted.CHATML, eos=tiny.ASCII.index(whole[at])
    ), whole[:at]


@pytest.mark.parametrize("name", EVERY)
def test_an_end_token_ends_an_answer(open_doors, ending, name):
    """Without its text, which it has here: the file types it as an ordinary token."""
    path, text = ending
    reply = open_doors(path)[name](max_tokens=40)
    assert (reply.text, reply.finish) == (text, "stop")


@pytest.mark.parametrize("name", EVERY)
def test_a_full_context_ends_an_answer(doors, name):
    """After the last token that it can hold, and one more, whose place nobody needs."""
    reply = doors[name](max_tokens=1000)
    assert reply.finish == OPENAIS.get(name, "context")
    assert reply.tokens == N_CTX + (name != "class") - len(scripted.prompt(QUESTION))
