"""Whose texts draft for whom, over HTTP."""

from __future__ import annotations

import json

from asking import post

from pyspec.batch.bodies import ChatBody, CompletionBody, decoded
from pyspec.serve.messages import MessagesBody
from pyspec.serve.responses import ResponsesBody


def test_a_server_drafts_for_the_same_user_only(serve):
    """Requests name their user; those that name none are one owner."""
    server = serve(length="fixed:8")
    body = {"model": "tiny", "prompt": "ab", "temperature": 1.2, "seed": 5, "max_tokens": 80}

    def accepted(**who):
        status, told = post(server, json.dumps({**body, **who}).encode(), "/v1/completions")
        assert status == 200
        return told["speculation"]["accepted"]

    alone = accepted(user="one")
    assert accepted(user="two") == accepted() == accepted(safety_identifier="three") == alone
    assert min(accepted(user="one"), accepted()) > alone + 30
    assert accepted(user="four") == alone


def test_every_interface_names_its_user():
    """Each by the field that it has for this."""
    chat, message = {"messages": [{"role": "user", "content": "a"}]}, {"max_tokens": 1}
    for kind, body in (
        (ChatBody, {**chat, "user": "one"}),
        (CompletionBody, {"prompt": "a", "safety_identifier": "one", "user": "two"}),
        (ResponsesBody, {"input": "a", "user": "one"}),
        (MessagesBody, {**chat, **message, "metadata": {"user_id": "one"}}),
    ):
        assert decoded(kind, json.dumps(body).encode()).owner == "one"
