"""Fields that other servers' clients send: what we have is done by their names, and what would change the answer is refused."""

import json

import pytest
from helpers import scripted
from helpers.asking import LEAST, TURN, ask, body, get, post, record_of, text_of

from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody
from pyspec.serve.app import INTERFACES
from pyspec.serve.messages import MessagesBody
from pyspec.serve.responses import ResponsesBody
from pyspec.text.messages import NO_PICTURE, standard

CHAT = "/v1/chat/completions"
SHAPE = scripted.DIGIT
FORM = {"type": "json_schema", "schema": SHAPE}


@pytest.fixture(scope="module")
def plain(serve_all):
    """A server whose model neither reasons nor calls tools."""
    return serve_all()


@pytest.mark.parametrize(("path", "asked"), [
    (CHAT, {"json_schema": SHAPE}),
    (CHAT, {"json_schema": SHAPE, "response_format": {"type": "text"}}),
    (CHAT, {"json_schema": json.dumps(SHAPE)}),
    (CHAT, {"structured_outputs": {"json": SHAPE, "regex": None}}),
    ("/v1/messages", {"output_config": {"format": FORM}}),
    ("/v1/responses", {"text": {"format": {**FORM, "name": "x", "strict": True}}}),
    ("/api/chat", {"messages": TURN, "format": SHAPE, "stream": False}),
])  # fmt: skip
def test_a_schema_by_each_name(plain, path, asked):
    told = ask(plain, path, max_tokens=100, **LEAST.get(path, {}), **asked)
    assert set(json.loads(text_of(told))) == {"n"}


@pytest.mark.parametrize("asked", [
    {"structured_outputs": {"grammar": "start: /[ab]{3}/"}},
    {"structured_outputs": {"regex": "[ab]{3}", "json": None}},
    {"structured_outputs": {"choice": ["aab"]}},
    {"structured_outputs": {"grammar": 'root ::= "ab" [a-b]'}},
    {"response_format": {"type": "regex", "regex": "[ab]{3}"}},
    {"grammar": "# three\nroot   ::=\n  [ab]{3}"},
])  # fmt: skip
def test_answers_that_are_no_json(plain, asked):
    told = ask(plain, CHAT, messages=TURN, max_tokens=100, **asked)
    assert set(text_of(told)) <= {"a", "b"}


@pytest.mark.parametrize("kind", [ChatBody, MessagesBody])
@pytest.mark.parametrize(("asked", "field", "wanted"), [
    ({"repetition_penalty": 1.5}, "repeat_penalty", 1.5),
    ({"repetition_penalty": 1.5, "repeat_penalty": 1.2}, "repeat_penalty", 1.2),
    *(({name: value}, "reasons", wanted) for name in ("enable_thinking", "think")
      for value, wanted in ((False, False), (True, None))),
])  # fmt: skip
def test_others_names_in_every_chat(kind, asked, field, wanted):
    assert getattr(record_of(kind, messages=TURN, **asked), field) == wanted


MORE = {
    "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["x", "\n"], "xtc_probability": 0.6, "xtc_threshold": 0.05,
    "dynatemp_range": 0.4, "dynatemp_exponent": 2.0, "sampling": "llama.cpp",
}  # fmt: skip


@pytest.mark.parametrize("path", LEAST)
def test_samplers_by_llama_servers_names(path):
    record = record_of(INTERFACES[path].body, **LEAST[path], **MORE)
    assert {name: getattr(record, name) for name in MORE} == MORE


@pytest.mark.parametrize("said", [
    {"content": [{"type": "text", "text": "No."}], "refusal": "Never."},
    {"content": None, "refusal": "No."},
    {"refusal": "No."},
    {"content": "No.", "refusal": None},
])  # fmt: skip
def test_what_the_model_refused_is_a_part_of_the_history(said):
    (made,) = standard(record_of(messages=[{"role": "assistant", **said}]).messages)
    assert made["content"] == "No."


@pytest.mark.parametrize("given", [str, lambda text: [{"type": "text", "text": text}]])
def test_a_predicted_answer_is_drafted(serve, given):
    server = serve(length="fixed:8")

    def answer(user, predicted=None):
        asked = {"user": user, "temperature": 1.2, "seed": 5, "max_tokens": 80}
        if predicted is not None:
            asked["prediction"] = {"type": "content", "content": given(predicted)}
        status, told = post(server, body("ab", **asked, logit_bias={"2": -100}))
        assert status == 200, told
        return text_of(told), told["speculation"]["accepted"]

    text, alone = answer("one")
    (same, foreseen), (also, wrong) = answer("two", text), answer("three", "no such words")
    assert same == also == text
    assert foreseen >= 70  # all but a token a round
    assert wrong == alone < 40


def test_what_is_predicted_is_no_part_of_what_is_asked():
    """A batch whose lines get one goes on where it was."""
    predicted = record_of(prediction={"type": "content", "content": "words"})
    assert (predicted.prediction, predicted.sha256) == ("words", record_of().sha256)


def test_several_calls_where_one_must_be_are_refused_by_request_alone():
    tools = [{"function": {"name": "f"}}]
    found = [record_of(tools=tools, parallel_tool_calls=asked) for asked in (None, True, False)]
    assert [record.parallel for record in found] == [True, True, False]


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def test_the_runner_of_tools_goes_on_without_threads(server, anthropic_of):
    """It knows by a code that there are none."""
    anthropic = pytest.importorskip("anthropic", reason="the extra [test] is not installed")

    @anthropic.beta_tool
    def look(place: str) -> str:
        return place

    messages = anthropic_of(server).beta.messages
    runner = messages.tool_runner(model="tiny", max_tokens=4, messages=TURN, tools=[look])
    assert next(iter(runner)).role == "assistant"


@pytest.mark.parametrize(("path", "headers"), [
    ("/v1/messages/batches", {}), ("/v1/models/none", {"anthropic-version": "2023-06-01"}),
])  # fmt: skip
def test_errors_elsewhere_have_anthropics_form(path, headers, server):
    status, told = get(server, path, **headers)
    assert (status, told["type"], told["error"]["type"]) == (404, "error", "not_found_error")


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_a_tool_that_clients_run_needs_a_schema(kind):
    """Only Anthropic's models know what such a type takes."""
    tool, own = {"type": kind, "name": "a"}, {"type": "object", "properties": {}}
    with pytest.raises(InputError, match="'a' has no input_schema"):
        record_of(MessagesBody, messages=TURN, tools=[tool])
    (made,) = record_of(MessagesBody, messages=TURN, tools=[{**tool, "input_schema": own}]).tools
    assert made["parameters"] == own


URL = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(("kind", "body"), [
    (ChatBody, {"messages": [{"role": "user", "content": [URL]}]}),
    (MessagesBody, {"messages": [{"role": "user", "content": [PICTURE]}]}),
    (ResponsesBody, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}),
])  # fmt: skip
def test_a_picture_is_refused_by_the_name_of_what_sees_it(kind, body):
    with pytest.raises(InputError, match=r"only pyspec\.SpeculativeLlama sees"):
        texts(kind, **body)


def texts(kind, **body):
    return [turn["content"] for turn in standard(record_of(kind, **body).messages)]


def test_a_picture_in_a_result_is_a_line_of_text():
    """In every interface, so that a conversation that is sent again goes on."""
    result = [{"type": "text", "text": "seen:"}, PICTURE]
    blocks = [{"type": "tool_result", "tool_use_id": "c", "content": result}]
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    said = {"role": "assistant", "content": [call]}
    turns = [*TURN, said, {"role": "user", "content": blocks}]
    assert texts(MessagesBody, messages=turns)[-1] == f"seen:\n{NO_PICTURE}"
    turns = [*TURN, {"role": "tool", "tool_call_id": "c", "content": [URL]}]
    assert texts(ChatBody, messages=turns)[-1] == NO_PICTURE
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:"}]},
    ]  # fmt: skip
    assert texts(ResponsesBody, input=items)[-1] == NO_PICTURE
