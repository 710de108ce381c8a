"""Biases of tokens, at the doors that take them."""

import pytest
from helpers import tiny


@pytest.fixture(params=["class", "batch", "serve"])
def door(doors, request):
    return doors[request.param]


def test_a_token_that_is_wanted_comes_always(door):
    assert door(logit_bias={str(tiny.ASCII.index("q")): 99.0}).text == "q" * 16


def test_a_token_that_is_banned_does_not_come(door):
    """Though the answer would have begun with it; the others keep their order."""
    first = door().text[0]
    assert first not in door(logit_bias={str(tiny.ASCII.index(first)): -100}, max_tokens=40).text


def test_a_bias_is_part_of_what_a_seed_gives_again(doors, door):
    asked = {"temperature": 1.5, "seed": 7, "logit_bias": {str(tiny.ASCII.index("q")): 6.0}}
    assert (
        door(**asked).text
        == doors["class"](**asked).text
        != door(**asked | {"logit_bias": {}}).text
    )
