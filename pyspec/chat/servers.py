"""Servers of this user: each leaves a record in the state folder, by which `generate` and `chat` find it."""

from __future__ import annotations

import http.client
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from pyspec.chat.files import state_path
from pyspec.store.files import write_whole
from pyspec.store.locate import means

FOLDER = "PYSPEC_SERVERS"
"""Environment variable for the records' folder; empty for none."""

_TIMEOUT_S = 1.0


class RunningServer(msgspec.Struct, frozen=True):
    """A server. key: that clients must send, "" for none. path: of its model; name: for clients."""

    url: str
    key: str
    pid: int
    name: str
    path: str
    draft: str
    n_ctx: int

    def serves(self, word: str | None) -> bool:
        """Whether its model is the one that a user's word for -m means; nothing is fetched to find out."""
        return word == self.name or bool(self.path and means(word, Path(self.path)))

    def connection(self, timeout: float | None = None) -> http.client.HTTPConnection:
        """Return a connection, not yet made."""
        place = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        )
        return kind(place.hostname or "", place.port, timeout=timeout)

    @property
    def headers(self) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **own}

    @property
    def answers(self) -> bool:
        """Whether it takes requests now."""
        connection = self.connection(_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def announce(server: RunningServer) -> Path | None:
    """Leave a record that only this user can read; None if there is no folder for it."""
    folder = state_path(FOLDER, "servers")
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{server.pid}.json"
        write_whole(path, [msgspec.json.encode(server)])
        path.chmod(0o600)
    except OSError:  # a read-only home must not prevent a server
        return None
    return path


def running() -> Iterator[RunningServer]:
    """Yield the servers whose processes live; records of others are removed. Those of other users are not believed."""
    folder = state_path(FOLDER, "servers")
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, msgspec.DecodeError):
            if not _is_own(path):
                continue
            server = msgspec.json.decode(path.read_bytes(), type=RunningServer)
            if psutil.pid_exists(server.pid):
                yield server
            else:
                path.unlink()


def _is_own(path: Path) -> bool:
    """Whether only this user can read and write a file; where the system has no such owners, a user's folders are theirs."""
    known = path.stat()
    if not hasattr(os, "getuid"):
        return True
    return known.st_uid == os.getuid() and not stat.S_IMODE(known.st_mode) & 0o077


def find_server(word: str | None) -> RunningServer | None:
    """Return a server of this user that has the model of a user's word, and takes requests."""
    return next((each for each in running() if each.serves(word) and each.answers), None)


def server_at(url: str) -> RunningServer | None:
    """Return the server at an address, with what it says of its model; None if nothing answers there.

    PYSPEC_API_KEY is its key.
    """
    key = os.environ.get("PYSPEC_API_KEY", "")
    known = next((each for each in running() if each.url == url.rstrip("/")), None)
    if known is not None:
        return known
    server = RunningServer(url.rstrip("/"), key, 0, "", "", "unknown", 0)
    connection = server.connection(_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/models", headers=server.headers)
        response = connection.getresponse()
        told = json.loads(response.read())["data"][0]
        n_ctx = int((told.get("meta") or {}).get("n_ctx") or 4096)
        return msgspec.structs.replace(server, name=str(told["id"]), n_ctx=n_ctx)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
