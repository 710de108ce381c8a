"""By its seed a text can be had again, at every door the same one."""

import pytest

HOT = {"temperature": 1.5, "max_tokens": 32}
SAMPLERS = [
    {},
    {"top_k": 7, "min_p": 0.02, "repeat_penalty": 1.3},
    {"top_p": 0.8, "typical_p": 0.7},
    {"presence_penalty": 0.4, "frequency_penalty": 0.6},
    {"dry_multiplier": 4.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["x"], "dry_penalty_last_n": -1},
    {"xtc_probability": 0.7, "xtc_threshold": 0.05, "dynatemp_range": 0.5},
]  # fmt: skip
ELSEWHERE = ("generate", "chat", "batch", "serve")
"""The doors where a request names its noise."""


@pytest.mark.parametrize("more", SAMPLERS, ids=str)
def test_samplers_and_seeds_change_the_text(doors, more):
    texts = {
        doors["class"](**HOT, **other).text
        for other in ({"seed": 7}, {**more, "seed": 7}, {**more, "seed": 8})
    }
    assert len(texts) == 2 + bool(more)


@pytest.mark.parametrize("more", SAMPLERS, ids=str)
def test_a_seed_gives_the_text_that_it_gives_to_the_class(doors, door, more):
    reply = door(**HOT, **more, seed=7)
    assert (reply.told["seed"], reply.told["sampling"]) == (7, "coupled")
    assert reply.text == doors["class"](**HOT, **more, seed=7).text


def test_a_seed_of_chance_is_told(door):
    first = door(**HOT)
    assert door(**HOT, seed=first.told["seed"]).text == first.text


def test_a_greedy_answer_has_no_seed(doors, door):
    reply = door()
    assert reply.text == doors["class"]().text
    assert not {"sampling", "seed"} & reply.told.keys()


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("noise", ["coupled", "llama.cpp"])
def test_a_request_names_its_noise(doors, name, noise):
    first, second = (doors[name](**HOT, seed=4, sampling=noise) for _ in range(2))
    assert first.told["sampling"] == noise
    assert first.text == second.text


def test_a_servers_own_seed_is_for_requests_without_one(open_doors):
    door = open_doors(seed=42)["serve"]
    assert door(**HOT).text == door(**HOT, seed=42).text != door(**HOT, seed=43).text


@pytest.mark.parametrize("name", ["class", "batch", "serve"])
def test_a_doors_own_noise_is_for_requests_without_one(open_doors, name):
    door = open_doors(sampling="llama.cpp")[name]
    assert door(**HOT).told["sampling"] == "llama.cpp"
    assert name == "class" or door(**HOT, sampling="coupled").told["sampling"] == "coupled"
