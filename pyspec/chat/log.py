"""The log of chats and answers: one file each, newest last, for `-c` to go on with."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import platformdirs

FOLDER = "PYSPEC_CHATS"
"""Environment variable with the log's folder; empty for none."""

MOST = 500
"""Chats that are kept; the oldest go."""


def log_folder() -> Path | None:
    """Where chats are logged, or None where they are not."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    if named is not None:
        return Path(named).expanduser()
    return platformdirs.user_state_path("pyspec", appauthor=False) / "chats"


def new_path() -> Path | None:
    """A name for a new chat, sorted by time; None where nothing is logged or the folder cannot be made."""
    folder = log_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that cannot be written to is no reason not to talk
        return None
    _prune(folder)
    moment = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{moment}-{os.getpid()}.json"


def newest() -> Path | None:
    """The chat that was written last, or None."""
    chats = _all(log_folder())
    return chats[-1] if chats else None


def _all(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    dated = []
    for path in folder.glob("*.json"):
        with suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def _prune(folder: Path) -> None:
    for path in _all(folder)[: -MOST + 1]:
        with suppress(OSError):
            path.unlink()
