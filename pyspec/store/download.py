"""A file over HTTP that goes on where an earlier attempt ended: also after a kill, which the hub's own library begins anew."""

from __future__ import annotations

import importlib
import ssl
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

ATTEMPTS = 5
"""Times that a connection which breaks is made anew, as long as each brings something."""

_CHUNK = 1 << 20
_SILENCE_S = 30.0
_PAST_THE_END = 416


def download(url: str, part: Path, size: int | None, token: str | None = None) -> None:
    """Load what `part` lacks of a file of so many bytes. Raises OSError; what has come by then stays.

    token: for this host alone, not for those that it redirects to.
    """
    for attempt in range(ATTEMPTS):
        before = _have(part)
        try:
            _go_on(url, part, token)
        except OSError:
            if attempt == ATTEMPTS - 1 or _have(part) == before:
                raise
        if size is None or _have(part) >= size:
            return
        if _have(part) == before:
            break
    raise OSError(f"the connection ended after {_have(part)} of {size} bytes")


def _have(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _go_on(url: str, part: Path, token: str | None) -> None:
    start = _have(part)
    if urlsplit(url).scheme not in ("http", "https"):
        raise OSError("it is no HTTP address")
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})  # noqa: S310 - as was looked at
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        how: dict[str, Any] = {"timeout": _SILENCE_S, "context": _certificates()}
        with (
            urllib.request.urlopen(request, **how) as answer,  # noqa: S310 - as above
            part.open("ab" if answer.status == 206 else "wb") as file,
        ):
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                file.flush()
    except HTTPError as error:
        if error.code != _PAST_THE_END or not start:
            raise


def _certificates() -> ssl.SSLContext:
    """Those that the hub's library uses, where they are installed; a Python of macOS has none of its own."""
    context = ssl.create_default_context()
    with suppress(ImportError, OSError):
        context.load_verify_locations(importlib.import_module("certifi").where())
    return context
