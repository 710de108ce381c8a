"""Fields that other servers' clients send: what we have is done by their names, and what would change the answer is refused."""

from __future__ import annotations

import json

import pytest
from helpers.asking import body, post

from pyspec.requests.bodies import ChatBody, decoded
from pyspec.text.messages import standard


def said(server, text="hello there", **options):
    status, told = post(server, body(text, **options))
    assert status == 200, told
    return told["choices"][0]["message"]["content"]


SHAPE = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "asked",
    [
        {"json_schema": SHAPE},
        {"json_schema": SHAPE, "response_format": {"type": "text"}},
        {"guided_json": SHAPE},
        {"guided_json": json.dumps(SHAPE)},
        {"structured_outputs": {"json": SHAPE, "regex": None}},
    ],
)
def test_a_schema_by_other_servers_names(serve, asked):
    """llama-server's, vLLM's and its older one."""
    assert set(json.loads(said(serve(), max_tokens=100, **asked))) == {"n"}


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_regex": "[ab]{3}"},
        {"guided_choice": ["abb", "bab"]},
        {"guided_grammar": 'root ::= [ab] "b"? [ab]'},
        {"guided_grammar": "start: /[ab]{3}/"},
        {"structured_outputs": {"regex": "[ab]{3}", "json": None}},
        {"structured_outputs": {"choice": ["aab"]}},
        {"structured_outputs": {"grammar": 'root ::= "ab" [a-b]'}},
        {"response_format": {"type": "regex", "regex": "[ab]{3}"}},
        {"grammar": "# three\nroot   ::=\n  [ab]{3}"},
    ],
)
def test_answers_that_are_no_json(serve, asked):
    """By vLLM's names, as a format, and as llama.cpp's grammar however it is laid out."""
    assert set(said(serve(), max_tokens=100, **asked)) <= {"a", "b"}


@pytest.mark.parametrize("name", ["json_schema", "guided_json", "structured_outputs"])
def test_another_schema_is_another_shape(name):
    """By whichever name it is sent: a grammar that is new here is not made beside everybody's requests."""
    shapes = {decoded(ChatBody, body(**{name: {"json": {"enum": [n]}}})).shape for n in range(2)}
    assert len(shapes) == 2
    assert None not in shapes


def test_a_text_has_no_shape():
    assert decoded(ChatBody, body()).shape is None


def record_of(**options):
    """What a chat's body asks for."""
    (record,) = decoded(ChatBody, body(**options)).records("a")
    return record


def test_a_repetition_penalty_by_vllms_name():
    """It is llama.cpp's, whose own name is heard first."""
    assert record_of(repetition_penalty=1.5).repeat_penalty == 1.5
    assert record_of(repetition_penalty=1.5, repeat_penalty=1.2).repeat_penalty == 1.2


@pytest.mark.parametrize(
    "said",
    [
        {"content": [{"type": "text", "text": "N"}, {"type": "refusal", "refusal": "o."}]},
        {"content": [{"type": "text", "text": "No."}], "refusal": "Never."},
        {"content": None, "refusal": "No."},
        {"refusal": "No."},
        {"content": "No.", "refusal": None},
    ],
)
def test_what_the_model_refused_is_a_part_of_the_history(said):
    """As what it said, wherever OpenAI has it."""
    (made,) = standard(record_of(messages=[{"role": "assistant", **said}]).messages)
    assert made["content"] == "No."


@pytest.mark.parametrize("given", [str, lambda text: [{"type": "text", "text": text}]])
def test_a_predicted_answer_is_drafted(serve, given):
    """From its first token on; where it is another's words, the answer stays the same."""
    server = serve(length="fixed:8")

    def answer(user, predicted=None):
        asked = {"user": user, "temperature": 1.2, "seed": 5, "max_tokens": 80}
        if predicted is not None:
            asked["prediction"] = {"type": "content", "content": given(predicted)}
        status, told = post(server, body("ab", **asked, logit_bias={"2": -100}))
        assert status == 200, told
        return told["choices"][0]["message"]["content"], told["speculation"]["accepted"]

    text, alone = answer("one")
    (same, foreseen), (also, wrong) = answer("two", text), answer("three", "no such words")
    assert same == also == text
    assert foreseen >= 70  # all but a token a round
    assert wrong == alone < 40


def test_what_is_predicted_is_no_part_of_what_is_asked():
    """A batch whose lines get one goes on where it was."""
    predicted = record_of(prediction={"type": "content", "content": "words"})
    assert predicted.prediction == "words"
    assert predicted.sha256 == record_of().sha256


@pytest.mark.parametrize("wrong", [{}, {"content": 5}, {"content": [{"type": "text"}]}, "words"])
def test_a_prediction_that_is_none_is_refused(serve, wrong):
    assert post(serve(), body(prediction=wrong))[0] == 400


def test_several_calls_where_one_must_be_are_refused_by_request_alone():
    """OpenAI's default is that several may be."""
    tools = [{"function": {"name": "f"}}]
    for asked, several in ((None, True), (True, True), (False, False)):
        assert record_of(tools=tools, parallel_tool_calls=asked).parallel is several


@pytest.mark.parametrize(
    "asked",
    [
        {"modalities": ["text", "audio"]},
        {"min_tokens": 4},
        {"ignore_eos": True},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"json_schema": {"type": "object"}, "grammar": "root ::= [a]"},
    ],
)
def test_what_would_change_the_answer_is_refused(serve, asked):
    """By its name; where it asks for nothing, it is none."""
    server = serve()
    status, told = post(server, body(**asked))
    assert status == 400
    assert (
        min(asked, key=lambda field: field == "grammar").split("_")[-1] in told["error"]["message"]
    )
    nothing = {"modalities": ["text"], "min_tokens": 0, "ignore_eos": False, "bad_words": None}
    assert post(server, body(**nothing))[0] == 200
