"""The chat: a conversation, the model that answers it, its commands and how it looks."""

from __future__ import annotations

import os
from pathlib import Path

from pyspec.machine.files import expanded

TWICE_S = 2.0  # a second Ctrl-C within this time, in seconds, quits, during an answer as well as at the prompt
SHOW, HIDE, UNASKED = "show", "hide", "off"  # reasoning; UNASKED asks the model for none


def _state_path(variable: str, name: str) -> Path | None:
    """Return a path for user state: from the variable, None if that is empty, else in the platform's folder."""
    named = os.environ.get(variable)
    if named is None:
        import platformdirs  # noqa: PLC0415 - a variable may name the folder

        return platformdirs.user_state_path("pyspec", appauthor=False) / name
    return expanded(named) if named else None


def log_folder() -> Path | None:
    """Return the folder of the log of chats and answers; None for no log."""
    return _state_path("PYSPEC_CHATS", "chats")


def history_file() -> Path | None:
    """Return the file of typed lines; None for no history."""
    return _state_path("PYSPEC_CHAT_HISTORY", "chat-history")
