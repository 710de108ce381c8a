"""The server as OpenAI's own client sees it."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from helpers import scripted
from helpers.asking import chat
from hypothesis import given
from hypothesis import strategies as st

from pyspec.requests.records import COMPLETION, Record
from pyspec.serve.completions import LogprobWriter
from pyspec.serve.interface import Choice
from pyspec.text.parts import Source, Token, TokenLogprobs

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")


@pytest.fixture(scope="module")
def server(serve_all):
    return serve_all()


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.meta["n_vocab"] > 32) == ("tiny", True)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize("options", [{}, {"n": 2, "temperature": 1.5, "seed": 7}])
def test_a_stream_is_the_whole_in_pieces(client, options):
    whole = chat(client, **options)
    chunks = list(chat(client, **options, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(c.delta.content or "" for c in own) == choice.message.content
        assert [c.delta.role for c in own if c.delta.role] == ["assistant"]
        assert [c.finish_reason for c in own if c.finish_reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == 16 * len(whole.choices)
    assert chunks[-2].speculation["rounds"] <= 16
    assert len(chunks) >= 4


def test_completions(client):
    one = client.completions.create(model="tiny", prompt="abc", max_tokens=8)
    two = client.completions.create(model="tiny", prompt=["abc", "hello"], max_tokens=8)
    assert two.choices[0].text == one.choices[0].text
    assert [c.index for c in two.choices] == [0, 1]
    ids = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=8)
    assert ids.usage.prompt_tokens == 3
    pieces = client.completions.create(model="tiny", prompt="abc", max_tokens=8, stream=True)
    assert "".join(p.choices[0].text for p in pieces if p.choices) == one.choices[0].text


def test_prompts_of_a_list_differ_by_seed(client):
    """Equal prompts do not share their noise; the first has the request's seed, and each can be had again by its own."""
    options = {"model": "tiny", "temperature": 1.5, "max_tokens": 12}
    many = client.completions.create(prompt=["ab"] * 3, n=2, seed=7, **options)
    texts, told = [each.text for each in many.choices], many.speculation["choices"]
    assert len(set(texts)) == 6
    used = many.usage
    assert (used.prompt_tokens, used.completion_tokens) == (6, 72)  # once for its choices
    assert (told[0]["seed"], {each["sampling"] for each in told}) == (7, {"coupled"})
    for text, block in zip(texts, told, strict=True):
        again = client.completions.create(prompt="ab", seed=block["seed"], **options)
        assert again.choices[0].text == text


def test_a_stop_string_ends_a_stream_before_it(client):
    text = chat(client, max_tokens=24).choices[0].message.content
    stop = text[10:12]
    pieces = chat(client, max_tokens=24, stop=stop, stream=True)
    assert text_of(pieces) == text[: text.index(stop)]


def test_logprobs(client):
    told = chat(client, logprobs=True, top_logprobs=3, max_tokens=6).choices[0].logprobs.content
    assert len(told) == 6
    assert all(len(entry.top_logprobs) == 3 for entry in told)
    assert all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in told)
    pieces = chat(client, logprobs=True, top_logprobs=3, max_tokens=6, stream=True)
    parts = [c.choices[0].logprobs for c in pieces if c.choices]
    streamed = [entry for part in parts if part for entry in part.content]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in told], abs=1e-5)
    plain = client.completions.create(model="tiny", prompt="abc", max_tokens=4, logprobs=2)
    assert len(plain.choices[0].logprobs.token_logprobs) == 4


JOINED = "a👩‍👧é👍🏽."


def test_characters_over_several_tokens_come_whole(serve, client_of, smollm2):
    real = client_of(serve(smollm2, n_ctx=256, parallel=1, type_k=None, type_v=None))
    how = {"extra_body": {"grammar": f'root ::= "{JOINED}"'}, "logprobs": True, "max_tokens": 64}
    whole = chat(real, **how).choices[0]
    chunks = [c.choices[0] for c in chat(real, **how, stream=True) if c.choices]
    assert whole.message.content == JOINED
    assert "".join(c.delta.content or "" for c in chunks) == JOINED
    assert all("\ufffd" not in (c.delta.content or "") for c in chunks)
    data = [byte for entry in whole.logprobs.content for byte in entry.bytes or ()]
    assert bytes(data).decode() == JOINED


def test_many_clients_at_once(client, server):
    texts = [f"question {i % 8}, and what follows from it" for i in range(64)]
    alone = {text: chat(client, text).choices[0].message.content for text in set(texts)}

    def one(i, text):
        if i % 2:
            return chat(client, text).choices[0].message.content
        return text_of(chat(client, text, stream=True))

    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(one, range(len(texts)), texts))
    assert found == [alone[text] for text in texts]
    server.wait_idle()


def test_speculation_by_request(client):
    text = "abcabcabcabc " * 8
    off = chat(client, text, extra_body={"speculation": {"enabled": False}})
    on = chat(client, text, extra_body={"speculation": {"tokens": True}})
    assert (off.speculation["drafted"], off.speculation["verified"]) == (0, 0)
    none = chat(client, text, extra_body={"speculation": {"length": "fixed:0"}})
    assert (none.speculation["verified"], none.choices) == (0, off.choices)
    assert off.choices[0].message.content == on.choices[0].message.content
    told = on.speculation["tokens"]
    assert "".join(token["text"] for token in told) == on.choices[0].message.content
    assert {token["source"] for token in told} <= {"target", "accepted"}
    loose = chat(client, extra_body={"speculation": {"verify": "margin", "gap": 9, "theta": 0}})
    assert loose.speculation["verification"] == "margin"


def test_numbers_that_mean_something_to_others(client):
    likeliest, greedy = chat(client, top_p=0, temperature=1.0), chat(client, temperature=0)
    assert likeliest.choices == greedy.choices
    assert chat(client, max_tokens=-1, stop=None).usage.total_tokens >= 1024


@pytest.mark.parametrize("base", ["", "/v1"])
def test_an_address_without_v1_means_the_same(server, client_of, base):
    """As llama-server has it: programs are told either."""
    client = client_of(server, base)
    assert chat(client, max_tokens=2).usage.completion_tokens == 2
    assert client.models.list().data[0].id == "tiny"
    assert client.responses.create(model="tiny", input="a", max_output_tokens=2).id[:5] == "resp_"
    with pytest.raises(openai.BadRequestError):
        chat(client, max_tokens=-5)


PIECES = [b"a", "\u2603".encode()[:1], "\u2603".encode()[1:], b"bc", b"", b"a"]


def likely(ids, top=None):
    return [(Token(i, Source.TARGET, 0.0, i), TokenLogprobs(-1.0, top or [(i, -1.0)])) for i in ids]


def writer():
    return LogprobWriter(Choice(0, Record(id="", form=COMPLETION), PIECES.__getitem__, 0.0))


def test_a_split_character_counts_once():
    assert writer().write(likely([0, 1, 2, 3, 0]))["text_offset"] == [0, 1, 1, 2, 4]


@given(ids=st.lists(st.integers(0, 5)), cut=st.integers(0, 20))
def test_a_stream_has_the_offsets_of_the_whole(ids, cut):
    streamed = writer()
    found = [streamed.write(likely(part))["text_offset"] for part in (ids[:cut], ids[cut:])]
    whole = writer().write(likely(ids))["text_offset"]
    assert [*found[0], *found[1]] == whole
    assert all(a <= b for a, b in pairwise(whole))


def test_of_two_tokens_of_one_text_the_likelier_is_told():
    top = [(5, -0.5), (0, -3.0), (1, -4.0), (2, -5.0)]
    told = writer().write(likely([5], top))
    assert told["top_logprobs"] == [{"a": -0.5, "bytes:\\xe2": -4.0, "bytes:\\x98\\x83": -5.0}]
    assert writer().write(likely([0], top[::-1]))["top_logprobs"][0]["a"] == -0.5


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


TOOL = {"type": "function", "function": {"name": "add", "parameters": scripted.DIGIT}}


@pytest.mark.parametrize(("own", "function", "choice"), [
    ("1", TOOL["function"], "auto"), (None, {"name": "add", "description": None, "parameters": None}, "none"),
])  # fmt: skip
def test_a_call_and_its_result_go_back_though_what_may_be_null_is(client, own, function, choice):
    made = {"id": own, "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    turns = [
        {"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": own, "content": "1"},
    ]  # fmt: skip
    asked = {"tools": [{"type": "function", "function": function}], "tool_choice": choice}
    answer = client.chat.completions.create(model="tiny", messages=turns, max_tokens=4, **asked)
    assert answer.usage.completion_tokens == 4


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": scripted.DIGIT}}


def test_tools_beside_a_response_format(client):
    """As the Agents SDK, pydantic-ai and LangChain send it: the answer is of that form, or a call; a forced call is a call."""
    options = {"tools": [TOOL], "response_format": FORM, "max_tokens": 300}
    (choice,) = chat(client, **options).choices
    if choice.message.tool_calls:
        assert choice.message.tool_calls[0].function.name == TOOL["function"]["name"]
    else:
        assert set(json.loads(choice.message.content)) == {"n"}
    one = {"tool_choice": "required", "parallel_tool_calls": False}
    (forced,) = chat(client, **options, **one).choices
    assert forced.finish_reason == "tool_calls"
