"""Refusals as the clients' libraries take them: what lasts is not asked again and again."""

from __future__ import annotations

import http.client

import pytest
from asking import body
from waiting import DEADLINE_S, wait

from pyspec import errors
from pyspec.serve.service import Service

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")


def refused(server, path="/v1/chat/completions"):
    """Status and headers of a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", path, body(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert b"message" in response.read()
    connection.close()
    return response.status, response.getheader("x-should-retry"), response.getheader("retry-after")


def test_what_is_not_made_here_is_asked_for_once(serve):
    """A client that would try three times believes the first answer."""
    lines = []
    server = serve(log=lines.append)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2)
    with client, pytest.raises(openai.InternalServerError, match="501"):
        client.embeddings.create(model="tiny", input="a")
    assert refused(server, "/v1/embeddings") == (501, "false", None)
    wait(lambda: len(lines) >= 2)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errors.NoMemory("none"), (503, "false", None)),
        (errors.TemplateError("none"), (503, "false", None)),
        (errors.UnsupportedModel("none"), (503, "false", None)),
        (errors.ModelInvalid("none"), (503, "false", None)),
        (errors.EngineError("none"), (503, None, "1")),
        (errors.TooManyRequests("none"), (429, None, "1")),
        (errors.ShuttingDown("none"), (503, None, "1")),
    ],
)
def test_what_passes_may_be_asked_again(serve, monkeypatch, error, told):
    """In a moment; what would be the same then says so."""

    async def ask(*_):
        raise error

    monkeypatch.setattr(Service, "ask", ask)
    assert refused(serve()) == told


def test_another_failure_says_what_it_is(serve, monkeypatch, caplog):
    """To the client, and in the log."""

    async def ask(*_):
        raise errors.DraftError("it drafts nonsense")

    monkeypatch.setattr(Service, "ask", ask)
    assert refused(serve())[0] == 500
    assert "POST /v1/chat/completions failed: it drafts nonsense" in caplog.text
