"""Connections that never ask, and names that are not this machine's: they take nothing from others."""

from __future__ import annotations

import socket

import pytest
from helpers.asking import begun, body, post
from helpers.waiting import DEADLINE_S

from pyspec.serve import server as uvicorn_server


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
    monkeypatch.setattr(uvicorn_server, "HEADERS_S", 0.3)
    server = serve()
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    for before in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        connection.sendall(before + begun)
        while connection.recv(4096):
            pass
        connection.close()


def test_an_address_of_ipv6_is_a_host(serve):
    server = serve(hosts=("localhost", "::1"))
    for host, status in ("[::1]:8080", 200), ("::1", 400):
        with begun(server, "/v1/models", Host=host) as response:
            assert response.status == status


def test_other_hosts_and_methods(serve):
    """A page elsewhere that calls this machine by its own name is refused; so is what is not served."""
    server = serve(hosts=("localhost", "127.0.0.1"))
    for host, path, status in [
        ("evil.example", "/v1/models", 400),
        ("localhost", "/v1/models", 200),
        ("evil.example.", "/v1/models", 400),
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
