"""Servers of this user: each leaves a record in the state folder, by which `generate` and `chat` find it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pyspec.chat import state_path
from pyspec.chat.asking import Request

FOLDER = "PYSPEC_SERVERS"
"""Environment variable for the records' folder; empty for none."""

_TIMEOUT_S = 1.0

WAIT_S, _POLL_S = 60.0, 0.1
"""Seconds to wait for a server that loads its model, before it is loaded here; seconds between two checks."""

READY, LOADING, GONE = "ready", "loading", "gone"


@dataclass(frozen=True)
class RunningServer:
    """A server. key: that clients must send, "" for none. path: of its model; name: for clients, "" while it loads.

    default: whether it is the default target. suggested: sampling as the model suggests it; left: what of it is not followed.
    """

    url: str
    key: str
    pid: int
    name: str
    path: str
    draft: str
    n_ctx: int
    default: bool = False
    suggested: dict[str, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def serves(self, word: str | None) -> bool:
        """Whether its model is the one that `-m word` means, None for the default. Nothing is fetched to find out."""
        if word is None or word == self.name:
            return self.default if word is None else True
        with suppress(OSError, ValueError, RuntimeError):  # no such file or user, a NUL byte
            if Path(word).expanduser().samefile(self.path):
                return True
        from pyspec.store.locate import means  # noqa: PLC0415 - reads what is known of models

        return bool(self.path and means(word, Path(self.path)))

    def ask(self, path: str, body: Any = None, timeout: float | None = None) -> Request:
        """Send a request. Raises OSError where nobody listens."""
        return Request(self.url, path, self.key, body, timeout)

    @property
    def state(self) -> str:
        """Whether it takes requests now: READY, LOADING for soon, or GONE."""
        if not self.name:
            return LOADING
        try:
            with closing(self.ask("/health", timeout=_TIMEOUT_S)) as request:
                return READY if request.status() == 200 else GONE
        except TimeoutError:
            return LOADING
        except (OSError, ValueError):
            return GONE


def announce(server: RunningServer) -> Path | None:
    """Leave a record that only this user can read; None if there is no folder for it."""
    folder = state_path(FOLDER, "servers")
    if folder is None:
        return None
    from pyspec.store.files import write_whole  # noqa: PLC0415 - who asks a server writes none

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{server.pid}.json"
        write_whole(path, [json.dumps(asdict(server)).encode()])
        path.chmod(0o600)
    except OSError:  # a read-only home must not prevent a server
        return None
    return path


def running() -> Iterator[RunningServer]:
    """Yield the servers whose processes are alive, and remove records of others.

    Records that other users own or can write are ignored.
    """
    folder = state_path(FOLDER, "servers")
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            if not _is_own(path):
                continue
            server = RunningServer(**json.loads(path.read_bytes()))
            if _lives(server.pid):
                yield server
            else:
                path.unlink()


def _lives(pid: int) -> bool:
    if os.name != "posix":  # a signal would end it
        import psutil  # noqa: PLC0415 - as above

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_own(path: Path) -> bool:
    """Whether only this user can read and write a file; where the system has no such owners, a user's folders are theirs."""
    known = path.stat()
    if not hasattr(os, "getuid"):
        return True
    return known.st_uid == os.getuid() and not stat.S_IMODE(known.st_mode) & 0o077


def find_server(
    word: str | None, waits: Callable[[RunningServer], None] = lambda _: None
) -> RunningServer | None:
    """Return a server of this user that has the model of `-m word` and takes requests; None if there is none.

    If it is still loading the model, wait for it. waits: called once before the wait.
    """
    until = None
    while True:
        loading = None
        for each in running():
            if each.serves(word):
                if (state := each.state) == READY:
                    return each
                loading = each if state == LOADING else loading
        if loading is None or (until is not None and monotonic() > until):
            return None
        if until is None:
            until = monotonic() + WAIT_S
            waits(loading)
        sleep(_POLL_S)


def server_at(url: str) -> RunningServer | None:
    """Return the server at an address, with facts about its model; None if nothing answers. PYSPEC_API_KEY is its key."""
    key = os.environ.get("PYSPEC_API_KEY", "")
    known = next((each for each in running() if each.url == url.rstrip("/")), None)
    if known is not None:
        return known
    server = RunningServer(url.rstrip("/"), key, 0, "", "", "unknown", 0)
    try:
        with closing(server.ask("/v1/models", timeout=_TIMEOUT_S)) as request:
            request.status()
            model = request.json()["data"][0]
        n_ctx = int((model.get("meta") or {}).get("n_ctx") or 4096)
        return replace(server, name=str(model["id"]), n_ctx=n_ctx)
    except (OSError, ValueError, LookupError, TypeError):
        return None
