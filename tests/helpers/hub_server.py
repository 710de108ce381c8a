"""A server on this machine that speaks the hub's protocol: what a repository holds, and its files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    """Answers `model_info` and downloads; `server.repos` maps OWNER/REPO to files."""

    protocol_version = "HTTP/1.1"

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, head: bool) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not head:
            stall: int = self.server.stall  # type: ignore[attr-defined]
            with suppress(OSError):  # a client that was killed
                self.wfile.write(body[: stall or None])
            if 0 < stall < len(body):
                self.server.stalled.wait()  # type: ignore[attr-defined]

    def _answer(self, *, head: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.server.asked.append(path)  # type: ignore[attr-defined]
        repos: dict[str, dict[str, bytes]] = self.server.repos  # type: ignore[attr-defined]
        parts = path.split("/")
        if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in repos:
            repo = "/".join(parts[2:4])
            commit = self.server.commit  # type: ignore[attr-defined]
            body = json.dumps({**_info(repo, repos[repo]), "sha": commit}).encode()
            self._send(200, body, {"Content-Type": "application/json"}, head=head)
            return
        repo, file = "/".join(parts[:2]), "/".join(parts[4:])
        if len(parts) > 4 and parts[2] == "resolve" and file in repos.get(repo, {}):
            raw = self.server.spoilt.get(file, repos[repo][file])  # type: ignore[attr-defined]
            stated = hashlib.sha256(repos[repo][file]).hexdigest()
            headers = {"ETag": f'"{stated}"', "X-Repo-Commit": COMMIT}
            self._send(200, raw, headers, head=head)
            return
        headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        self._send(404, b"{}", headers, head=head)

    def do_GET(self) -> None:
        self._answer(head=False)

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _info(repo: str, files: dict[str, bytes]) -> dict[str, object]:
    siblings = [
        {"rfilename": name, "size": len(raw), "blobId": "b",
         "lfs": {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "pointerSize": 1}}
        for name, raw in files.items()
    ]  # fmt: skip
    return {"id": repo, "modelId": repo, "sha": COMMIT, "private": False, "tags": [], "downloads": 0,
            "likes": 0, "siblings": siblings}  # fmt: skip


@contextmanager
def serving(repos: dict[str, dict[str, bytes]]) -> Iterator[ThreadingHTTPServer]:
    """The server while the block runs; `asked` lists the paths it was asked for, `spoilt` replaces files' bytes.

    commit: what it calls the newest. stall: bytes after which it sends no more.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.repos, server.asked, server.spoilt = repos, [], {}  # type: ignore[attr-defined]
    server.stall, server.stalled = 0, Event()  # type: ignore[attr-defined]
    server.commit = COMMIT  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stalled.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()
