"""A client for one HTTP request. It uses only a socket, since importing `http.client` takes as long as starting Python."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_MAX_LINE, _MAX_HEADERS = 1 << 16, 200


class Request:
    """A request. The constructor sends it, by HTTP/1.0: the server closes the connection at the end of its answer.

    Args:
        url: The server's address.
        path: Appended to the path in `url`.
        key: Sent as a bearer token, unless empty.
        body: Sent by POST as JSON; None for a GET.
        timeout: Seconds that connecting and each read may take; None for no limit.

    Raises:
        OSError: The server does not accept the connection.
    """

    def __init__(
        self, url: str, path: str, key: str = "", body: Any = None, timeout: float | None = None
    ) -> None:
        place = urlsplit(url)
        host, port = place.hostname or "", place.port or (443 if place.scheme == "https" else 80)
        # a str would be encoded by IDNA, whose tables take long to import
        encoded: Any = host.encode() if host.isascii() else host
        self._socket = socket.create_connection((encoded, port), timeout)
        if place.scheme == "https":
            self._socket = _secured(self._socket, host)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {place.path.rstrip('/')}{path} HTTP/1.0",
            f"Host: {place.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        self._file = self._socket.makefile("rb")

    def status(self) -> int:
        """Wait for the answer's status line, skip its headers, and return the status. Raises OSError or ValueError."""
        first = self._file.readline(_MAX_LINE).split(None, 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1."):
            raise ValueError("it does not speak HTTP")
        for _ in range(_MAX_HEADERS):
            if self._file.readline(_MAX_LINE) in (b"\r\n", b"\n", b""):
                return int(first[1])
        raise ValueError("its answer has too many headers")

    def lines(self) -> Iterator[bytes]:
        """Iterate over the body's lines as they arrive."""
        return iter(self._file)

    def json(self) -> Any:
        """Read the body, and return what its JSON holds. Raises OSError or ValueError."""
        return json.loads(self._file.read())

    def cancel(self) -> None:
        """End the request; may be called from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket."""
        self._file.close()
        self._socket.close()


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl  # noqa: PLC0415 - takes long to import, and local servers speak plain HTTP

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
