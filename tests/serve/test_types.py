"""A value of a wrong type is refused by the name of its field, in every API and at every depth."""

import json
import re
from functools import partial

import pytest
from helpers.asking import LEAST, TURN, ask, begun

from pyspec.errors import ContextOverflow, InputError
from pyspec.requests.bodies import Message, decoded, records_of
from pyspec.serve.app import INTERFACES
from pyspec.serve.messages import CountBody
from pyspec.serve.ollama import OllamaOptions

VALUES = [None, True, "x", 5, 1.5, [], [5], {}, {"x": 5}]
SAID = {"messages": TURN, "max_tokens": 1}
ASKED = {
    **{path: {**asked, "max_tokens": 1} for path, asked in LEAST.items()},
    "/infill": {"input_prefix": "hi", "n_predict": 1},
    "/api/chat": {**SAID, "stream": False},
    "/api/generate": {"prompt": "hi", "max_tokens": 1, "stream": False},
    "/v1/messages/count_tokens": SAID,
}
KINDS = "'(int|str|float|list|dict|bool)'"
PYTHONS = re.compile(rf"Error|object has no|unsupported|subscript|NoneType|{KINDS}")
"""What Python says of itself, and nobody should read."""


def read(path, asked):
    kind = INTERFACES[path].body if path in INTERFACES else CountBody
    return decoded(kind, json.dumps(asked).encode())


def told(ask, field):
    """What is wrong with the refusal of what is asked; None if it is right, "taken" if there is none."""
    try:
        ask()
    except (InputError, ContextOverflow) as error:
        wrong = not re.search(field, str(error)) or PYTHONS.search(str(error))
        return str(error) if wrong else None
    except Exception as error:  # noqa: BLE001 - a 500
        return repr(error)
    return "taken"


def check(service, path, asked):
    body = read(path, asked)
    # the model has no tokens for filling in
    return records_of(body) if path == "/infill" else service._answers(body, "a")


def faults(server, path, asks):
    """Wrong refusals of requests, each with the name of its odd field. Those that are taken are answered."""
    service, found = server.app.state.fleet.default, []
    for field, asked in asks:
        wrong = told(partial(check, service, path, asked), field)
        if wrong == "taken" and path in INTERFACES and path != "/infill":
            with begun(server, path, json.dumps(asked).encode()) as response:
                wrong = wrong if response.status == 200 else response.status
        found.append((json.dumps(asked), wrong))
    return [each for each in found if each[1] not in (None, "taken")]


def fields_of(path):
    return type(read(path, ASKED[path])).__struct_fields__


@pytest.mark.parametrize("path", ASKED)
def test_each_field_with_each_value_is_taken_or_refused_by_name(server, path):
    fields = fields_of(path)
    asks = [
        (f"{key}|response_format", {**ASKED[path], key: value})
        for key in fields
        for value in VALUES[1:]
    ]
    assert faults(server, path, asks) == []


@pytest.mark.parametrize("path", ASKED)
def test_null_is_absent(path):
    for field in fields_of(path):
        without = {key: value for key, value in ASKED[path].items() if key != field}
        try:
            absent = read(path, without)
        except InputError:
            with pytest.raises(InputError, match=field):
                read(path, {**without, field: None})
        else:
            assert read(path, {**without, field: None}) == absent


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_each_of_ollamas_options(server, path):
    options = OllamaOptions.__struct_fields__
    asks = [(key, {**ASKED[path], "options": {key: value}}) for key in options for value in VALUES]
    assert faults(server, path, asks) == []


TOOL = [
    "type", "name", "description", "execution", "parameters", "input_schema", "function", "format", "tools", "environment",
    "defer_loading",
]  # fmt: skip


@pytest.mark.parametrize("path", [
    "/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses",
])  # fmt: skip
def test_each_member_of_messages_and_tools(server, path):
    say, asks = "input" if "responses" in path else "messages", []
    for value in VALUES:
        for key in Message.__struct_fields__:
            for role in ("user", "assistant", "tool"):
                turn = {"role": role, "content": "hi", key: value}
                asks.append((key, {**ASKED[path], say: [turn, {"role": "user", "content": "hi"}]}))
        for key in TOOL:
            inner = {"name": "f", "parameters": {}, key: value}
            tools = {"type": "function", "function": inner}, {"type": "custom", **inner}, inner
            asks += [(key, {**ASKED[path], "tools": [tool]}) for tool in tools]
    asks = [(f"{key}|message|tool|item|lacks '", asked) for key, asked in asks]
    assert faults(server, path, asks) == []


INNER = [
    ("/v1/responses", "format", {"text": {"format": 5}}),
    ("/v1/chat/completions", "budget_tokens", {"thinking": {"budget_tokens": True}}),
    ("/v1/chat/completions", "effort", {"reasoning": {"effort": 5}}),
    ("/v1/chat/completions", "schema", {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}),
    ("/infill", "logit_bias", {"logit_bias": [[5, True]]}),
    ("/infill", "filename", {"input_extra": [{"text": "a", "filename": 5}]}),
    ("/v1/messages", "'name'", {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "field", "odd"), INNER)
def test_what_is_inside_settings(server, path, field, odd):
    assert field in json.dumps(ask(server, path, 400, **{**ASKED[path], **odd}))
