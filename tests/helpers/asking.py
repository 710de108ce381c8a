"""Requests to a server under test, whole and in pieces."""

import json
import socket
from contextlib import closing, contextmanager
from http.client import HTTPConnection

from helpers.waiting import DEADLINE_S
from pyspec.requests.bodies import ChatBody, decoded, records_of

TURN = [{"role": "user", "content": "hello"}]
LEAST = {
    "/v1/chat/completions": {"messages": TURN}, "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"}, "/v1/messages": {"messages": TURN},
}  # fmt: skip
"""What has to be asked of each interface."""


def body(text="hello", **options):
    messages = [{"role": "user", "content": text}]
    return json.dumps({"messages": messages, "max_tokens": 8, **options}).encode()


@contextmanager
def begun(server, path, data=None, **headers):
    """The response to a GET, or to a POST of this data, before it is read. A header that is None is not sent."""
    if data is not None:
        headers = {"Content-Type": "application/json", **headers}
        headers = {name: value for name, value in headers.items() if value is not None}
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)) as connection:
        connection.request("GET" if data is None else "POST", path, data, headers)
        yield connection.getresponse()


def get(server, path, **headers):
    """The status of a GET, and the JSON that it answers."""
    with begun(server, path, **headers) as response:
        return response.status, json.loads(response.read())


def post(server, data, path="/v1/chat/completions", **headers):
    with begun(server, path, data, **headers) as response:
        return response.status, json.loads(response.read())


def ask(server, path, status=200, **options):
    found, told = post(server, json.dumps(options).encode(), path)
    assert found == status, told
    return told


def text_of(told):
    """The text of an answer, in the words of any interface."""
    if "choices" in told:
        (choice,) = told["choices"]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    if "message" in told:
        return told["message"]["content"]
    (said,) = told["output"][0]["content"] if "output" in told else told["content"]
    return said["text"]


def record_of(kind=ChatBody, **asked):
    """What a body of this kind asks for; hello, if it is a chat's that says nothing."""
    if kind is ChatBody:
        asked = {"messages": TURN, **asked}
    (record,) = records_of(decoded(kind, json.dumps(asked).encode()))
    return record


def chat(client, text="hello there", **options):
    options = {"messages": [{"role": "user", "content": text}], "max_tokens": 16, **options}
    return client.chat.completions.create(model="tiny", **options)


def first_text(connection):
    """Reads a stream of chat until it has said something."""
    said = b""
    while b'"content":"' not in said.replace(b'"content":""', b""):
        said += (more := connection.recv(4096))
        assert more, said


def rest(connection):
    """What comes to the end of a response, behind which its connection is closed."""
    text = b""
    while not text.endswith(b"0\r\n\r\n"):
        text += (more := connection.recv(1 << 16))
        assert more
    connection.close()
    return text


def raw(server, data, **options):
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(DEADLINE_S)
    # before it connects: a window that shrinks is probed for 0.1 s a kilobyte
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection
