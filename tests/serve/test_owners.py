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


def test_an_owner_outlives_a_session():
    """Agents name a user by account and session; what was said in one session drafts in the next."""
    session = "_session_01234567-89ab-cdef-0123-456789abcdef"

    def owner(user):
        body = {"messages": [], "max_tokens": 1, "metadata": {"user_id": user}}
        return decoded(MessagesBody, json.dumps(body).encode()).owner

    assert owner(f"user_a_account_b{session}") == owner("user_a_account_b") != owner("user_c")
    first, second = (json.dumps({"device_id": "d", "session_id": each}) for each in "ab")
    assert owner(first) == owner(second) != owner(json.dumps({"device_id": "e"}))
    for whole in (
        session,
        f"a{session}b",
        "a_session_b",
        json.dumps({"session_id": "x"}),
        "[1]",
        "5",
    ):
        assert owner(whole) == whole
