"""Connections that never ask, and names that are not this machine's: they take nothing from others."""

from __future__ import annotations

import socket

import pytest
from helpers.asking import begun, body, get, post
from helpers.waiting import DEADLINE_S, wait

from pyspec.serve import guard


def test_half_a_request_takes_nothing(serve):
    """Headers or a body that never end: others are served, and nothing runs."""
    server = serve()
    dead = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for connection in dead[:10]:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    for connection in dead[10:]:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
    assert post(server, body())[0] == 200
    assert server.batch.load == (0, 0)
    for connection in dead:
        connection.close()


def test_late_headers_end_the_connection(serve, monkeypatch):
    monkeypatch.setattr(guard, "HEADERS_S", 0.3)
    server = serve()
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    for before in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        connection.sendall(before + begun)
        while connection.recv(4096):
            pass
        connection.close()


def half(server):
    """A connection whose headers have begun."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    return connection


def is_ended(connection):
    """Whether a server that has come as far as the requests behind this connection has closed it."""
    connection.settimeout(1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def health(server):
    """The status of a request behind all those that came before."""
    return get(server, "/health")[0]


@pytest.fixture
def narrow(serve, monkeypatch):
    """A server with room for 8 connections that ask half, and for 24 of them that have just come."""
    monkeypatch.setattr(guard, "MAX_HALF", 8)
    monkeypatch.setattr(guard, "MAX_NEW", 24)
    return serve()


def test_half_sent_requests_shut_nobody_out(narrow, monkeypatch):
    """More of them than there is room for: the oldest goes."""
    monkeypatch.setattr(guard, "GRACE_S", 0.0)
    dead = [half(narrow) for _ in range(20)]
    assert health(narrow) == 200
    assert [is_ended(each) for each in (dead[0], dead[-1])] == [True, False]
    assert len(guard.GuardedProtocol.half()) <= 8
    for connection in dead:
        connection.close()


def test_a_client_has_time_to_ask(narrow, monkeypatch):
    """It does not give way to those that come at once behind it: its request lies in the socket, and nobody has looked yet."""
    monkeypatch.setattr(guard, "GRACE_S", DEADLINE_S)
    asking = half(narrow)
    dead = [half(narrow) for _ in range(20)]
    assert health(narrow) == 200
    asking.sendall(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
    assert asking.recv(12) == b"HTTP/1.1 400"
    for connection in (asking, *dead):
        connection.close()


def test_those_that_have_just_come_have_a_bound_too(narrow, monkeypatch):
    """The oldest gives way, however new it is."""
    monkeypatch.setattr(guard, "GRACE_S", DEADLINE_S)
    dead = [half(narrow) for _ in range(24)]
    assert health(narrow) == 200
    dead += [half(narrow) for _ in range(10)]
    assert health(narrow) == 200
    assert [is_ended(each) for each in (dead[0], dead[-1])] == [True, False]
    assert len(guard.GuardedProtocol.half()) <= 24
    for connection in dead:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_refused_name_says_what_would_allow_it(serve, path):
    """As the interface's clients read errors; they show the sentence."""
    server = serve(hosts=("localhost",))
    status, told = post(server, body(), path, Host="proxy.example")
    assert (status, told.get("type")) == (400, "error" if path == "/v1/messages" else None)
    assert "'proxy.example'" in told["error"]["message"]
    assert "--allow-host" in told["error"]["message"]


def test_other_hosts_and_methods(serve):
    """A page elsewhere that calls this machine by its own name is refused; so is what is not served."""
    server = serve(hosts=("localhost", "127.0.0.1"))
    for host, path, status in [
        ("evil.example", "/v1/models", 400),
        ("localhost", "/v1/models", 200),
        ("[::1]:8080", "/v1/models", 400),
        ("localhost:1", "/v1/models", 200),
        ("LOCALHOST.", "/v1/models", 200),
        ("localhost.:1", "/v1/models", 200),
        ("localhost.evil.example", "/v1/models", 400),
        ("", "/v1/models", 400),
        ("localhost", "/nothing", 404),
        ("localhost", "/v1/chat/completions", 405),
    ]:
        with begun(server, path, Host=host) as response:
            assert response.status == status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/"])
def test_a_body_of_two_lengths_is_refused_and_its_connection_closed(serve, path):
    """A proxy that believes the other length would take what follows for another client's request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    twice = f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{head}\r\n{{}}"
    with socket.create_connection(("127.0.0.1", serve().port), timeout=DEADLINE_S) as connection:
        connection.sendall(twice.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_half_a_body_is_half_a_request(serve):
    """Its connection is among those that give way to newcomers; one whose request is answered is not."""
    server = serve()
    late = socket.create_connection(("127.0.0.1", server.port))
    late.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    )
    assert post(server, body())[0] == 200  # what came before it has been read by now
    wait(lambda: len(guard.GuardedProtocol.half()) == 1)
    late.close()
