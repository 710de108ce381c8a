"""One request to a server, by nothing but a socket: `http.client` takes as long to import as Python to start."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

_MAX_LINE, _MAX_HEADERS = 1 << 16, 200


class Request:
    """A request, sent when it is made. It speaks HTTP/1.0, in which an answer ends with the connection.

    url: of the server. body: sent as JSON with POST; None for GET. timeout: seconds of each wait. Raises OSError where
    nobody listens.
    """

    def __init__(
        self, url: str, path: str, key: str = "", body: Any = None, timeout: float | None = None
    ) -> None:
        place = urlsplit(url)
        host, port = place.hostname or "", place.port or (443 if place.scheme == "https" else 80)
        # as str, it would import IDNA's tables
        named: Any = host.encode() if host.isascii() else host
        self._socket = socket.create_connection((named, port), timeout)
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
        """Wait for the answer's status, and skip its headers. Raises OSError, or ValueError for what is no HTTP."""
        first = self._file.readline(_MAX_LINE).split(None, 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1."):
            raise ValueError("it does not speak HTTP")
        for _ in range(_MAX_HEADERS):
            if self._file.readline(_MAX_LINE) in (b"\r\n", b"\n", b""):
                return int(first[1])
        raise ValueError("its answer has too many headers")

    def lines(self) -> Iterator[bytes]:
        """The lines of the answer, as they come."""
        return iter(self._file)

    def told(self) -> Any:
        """The answer, which must be JSON. Raises OSError or ValueError."""
        return json.loads(self._file.read())

    def cancel(self) -> None:
        """End it; safe from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl  # noqa: PLC0415 - servers of this machine have no certificates

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
