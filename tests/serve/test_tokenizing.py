"""Tokens and the probabilities of given texts."""

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from helpers.asking import ask, text_of


@pytest.fixture
def server(serve):
    return serve()


def test_a_text_and_its_tokens(server):
    ids = ask(server, "/tokenize", content="hello")["tokens"]
    assert ids == [tiny.ASCII.index(char) for char in "hello"]
    assert ask(server, "/detokenize", tokens=ids) == {"content": "hello"}
    pieces = ask(server, "/tokenize", content="hi", with_pieces=True)["tokens"]
    assert [each["piece"] for each in pieces] == ["h", "i"]


def scores(path, ids):
    options = {"n_threads": 1, "type_k": 0, "type_v": 0, "verbose": False}
    llm = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, **options)
    llm.eval(ids)
    rows = np.array(llm.scores[: len(ids)], np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return [rows[i, token] for i, token in enumerate(ids[1:])]


@pytest.mark.parametrize("length", [2, 64, 65, 150])
def test_how_likely_a_prompt_is(server, tiny_ascii, length):
    rng = np.random.default_rng(length)
    ids = [int(i) for i in rng.integers(5, 90, length)]
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    body["prompt"] = [ids, ids[::-1]]
    first, second = ask(server, "/v1/completions", **body)["choices"]
    for choice, given in ((first, ids), (second, ids[::-1])):
        found = choice["logprobs"]
        assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
        assert len(found["token_logprobs"]) == len(found["tokens"]) == length + 1
        assert found["token_logprobs"][1:-1] == pytest.approx(scores(tiny_ascii, given), abs=1e-3)
        assert all(max(top.values()) >= value for top, value in zip(
            found["top_logprobs"][1:-1], found["token_logprobs"][1:-1]))  # fmt: skip
    text = ask(server, "/detokenize", tokens=ids)["content"]
    assert first["text"].startswith(text)


def test_the_answer_behind_an_echo_is_the_same(server):
    """Whether the prompt was scored or not; also where no answer is asked for."""
    asked = {"prompt": "hello there", "max_tokens": 9}
    plain = ask(server, "/v1/completions", **asked)
    for extra in ({}, {"logprobs": 2}):
        echoed = ask(server, "/v1/completions", **asked, echo=True, **extra)
        assert text_of(echoed) == "hello there" + text_of(plain)
        assert echoed["usage"]["completion_tokens"] == 9
    asked = {**asked, "max_tokens": 0, "echo": True}
    (choice,) = ask(server, "/v1/completions", **asked, logprobs=0)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hello there", "length")
    assert len(choice["logprobs"]["token_logprobs"]) == 11
    assert text_of(ask(server, "/v1/completions", **asked)) == "hello there"


def test_scoring_beside_answers(server):
    from concurrent.futures import ThreadPoolExecutor

    ids = [int(i) for i in np.random.default_rng(3).integers(5, 90, 300)]
    scored = {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True}
    asked = [scored, {"prompt": "abcabcabc", "max_tokens": 60}] * 4

    def first_choice(body):
        return ask(server, "/v1/completions", **body)["choices"][0]

    alone = list(map(first_choice, asked[:2]))
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(first_choice, asked))
    for i, choice in enumerate(found):
        assert choice["text"] == alone[i % 2]["text"]
        if i % 2 == 0:
            values = choice["logprobs"]["token_logprobs"][1:]
            assert values == pytest.approx(alone[0]["logprobs"]["token_logprobs"][1:], abs=1e-3)


INSIDE = [1, 2, 1, 2, 40]
"""Ids as a client may send them, those of control tokens among them."""


def test_no_request_brings_tokens_in_a_message(server):
    """An answer of this package's own chat has its tokens beside its text; from outside they would become control tokens."""
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "so"}]
    asked = [*said, {"role": "user", "content": "x"}]
    for tokens in (5, "x", INSIDE, [10**9], [[1]], [None]):
        marked = [{**turn, "tokens": tokens} for turn in asked]
        pairs = [
            ("/v1/chat/completions", {"messages": marked}, {"messages": asked}),
            ("/v1/responses", {"input": marked}, {"input": asked}),
            ("/v1/messages", {"messages": marked}, {"messages": asked}),
        ]
        for path, body, plain in pairs:
            told = [ask(server, path, **each, max_tokens=1)["usage"] for each in (body, plain)]
            assert len({sum(_read(usage)) for usage in told}) == 1, path


def _read(usage):
    names = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
    return [usage.get(name, 0) for name in names]
