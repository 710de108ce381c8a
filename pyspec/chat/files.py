"""Files of the chat: saved conversations, texts, and the log for `--continue`."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from pyspec.chat import state_path
from pyspec.chat.dialogue import Conversation, Exchange
from pyspec.errors import InputError, InputTooLong
from pyspec.machine.files import parse, read_named, show, utf8, write_whole
from pyspec.text.parts import Result

MAX_TEXT = 1 << 20  # largest text file to read, or line to type, bytes

_MAX_SESSION = 1 << 26

_PICTURE = re.compile(r"\.(png|jpe?g|gif|webp|bmp|tiff?|heic|pdf)$", re.IGNORECASE)


class SavedMessage(msgspec.Struct, omit_defaults=True):
    """One turn, as text: tokens of a file could slip control tokens into a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str
    finish_reason: str | None = None
    seed: int = 0
    reasoning: str = ""


class SavedModel(msgspec.Struct):
    """The target of a conversation."""

    name: str
    path: str = ""


class SavedChat(msgspec.Struct):
    """The content of a file. settings: names and values as in `/set`."""

    kind: Literal["pyspec-chat"]
    format: Literal[1]
    pyspec: str
    model: SavedModel
    settings: dict[str, str]
    messages: list[SavedMessage]


def save(
    path: Path, conversation: Conversation, settings: dict[str, str], model: SavedModel
) -> None:
    """Write a conversation atomically, readable by its owner only.

    Raises InputError if it cannot be written, or if the existing file is not a saved chat.
    """
    check_replaceable(path)
    from pyspec._version import __version__  # noqa: PLC0415 - found when asked for

    saved = SavedChat(
        kind="pyspec-chat",
        format=1,
        pyspec=__version__,
        model=model,
        settings=settings,
        messages=_messages(conversation),
    )
    data = msgspec.json.format(msgspec.json.encode(saved), indent=1)
    try:
        write_whole(path, [data, b"\n"])
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", "name another file") from error


def check_replaceable(path: Path) -> None:
    """Raise InputError if the name is taken by something that is not a saved chat."""
    try:
        if is_there(path):
            load(path)
    except InputError:
        raise InputError(f"{path} exists and is not a saved chat", "name another file") from None


def is_there(path: Path) -> bool:
    """Whether a name is taken. Raises InputError for an impossible name."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # too long, a NUL byte, an unreadable folder
        reason = getattr(error, "strerror", None) or error
        hint = "name another file"
        raise InputError(f"cannot write {show(str(path), 300)}: {reason}", hint) from None
    return True


def _messages(conversation: Conversation) -> list[SavedMessage]:
    turns = [] if conversation.system is None else [SavedMessage("system", conversation.system)]
    for exchange in conversation.exchanges:
        turns.append(SavedMessage("user", exchange.user))
        if (answer := exchange.answer) is not None:
            how = answer.finish_reason, exchange.seed, answer.reasoning
            turns.append(SavedMessage("assistant", answer.text, *how))
    return turns


def load(path: Path) -> SavedChat:
    """Read a saved chat. Raises InputError for anything else."""
    data = _read(path, _MAX_SESSION)
    try:
        return parse(data, SavedChat)
    except ValueError as error:
        raise InputError(f"{path} is not a saved chat: {error}", "/save writes them") from None


def restore(saved: SavedChat) -> Conversation:
    """Return the saved conversation. Raises InputError if turns do not alternate."""
    conversation = Conversation()
    for index, message in enumerate(saved.messages):
        last = conversation.exchanges[-1] if conversation.exchanges else None
        if message.role == "system" and index == 0:
            conversation.system = message.content
        elif message.role == "user" and (last is None or last.answer is not None):
            conversation.exchanges.append(Exchange(message.content))
        elif message.role == "assistant" and last is not None and last.answer is None:
            last.seed = message.seed & 0xFFFFFFFF
            last.answer = Result(
                text=message.content,
                finish_reason=message.finish_reason,
                reasoning=message.reasoning,
            )
        else:
            what = f"message {index + 1} is a {message.role} turn in the wrong place"
            raise InputError(what, "user and assistant alternate after one system turn")
    if conversation.exchanges and conversation.exchanges[-1].answer is None:
        conversation.exchanges.pop()
    return conversation


def held_with(saved: SavedChat, name: str) -> str:
    """Say that a conversation continues with a model of another name; empty if the name is the same."""
    if saved.model.name == name:
        return ""
    return f"this conversation was held with {saved.model.name}, not with {name}"


def refuse_picture(name: str) -> None:
    """Raise InputError for a file with a picture's extension."""
    if _PICTURE.search(name):
        hint = "pyspec.SpeculativeLlama sees pictures"
        raise InputError("a picture cannot be read as text", hint)


def read_text(path: Path) -> str:
    """Read a UTF-8 text file of at most 1 MiB. Raises InputError, InputTooLong or InputEncoding."""
    refuse_picture(path.name)
    return utf8(_read(path, MAX_TEXT), str(path))


def _read(path: Path, limit: int) -> bytes:
    try:
        return read_named(path, limit)
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise InputTooLong(f"{path} is larger than {limit} bytes", "shorten it") from None
        raise InputError(f"cannot read {path}: {reason}", "name a readable file") from error


FOLDER = "PYSPEC_CHATS"  # environment variable for the log's folder; empty for no log
MAX_CHATS = 500  # most logged chats; the oldest are deleted


def log_folder() -> Path | None:
    """Return the folder of the chat log, or None for no log."""
    return state_path(FOLDER, "chats")


def new_path() -> Path | None:
    """Return a path for a new chat, sorted by time; None if there is no log or its folder cannot be made."""
    folder = log_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a read-only home must not prevent a chat
        return None
    for path in _all(folder)[: -MAX_CHATS + 1]:
        with suppress(OSError):
            path.unlink()
    moment = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{moment}-{os.getpid()}.json"


def newest() -> Path:
    """Return the most recently written chat. Raises InputError if there is none."""
    if not (chats := _all(log_folder())):
        raise InputError("there is nothing to continue", "ask something first, without -c")
    return chats[-1]


def _all(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    dated = []
    for path in folder.glob("*.json"):
        with suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def logged(most: int) -> list[tuple[Path, SavedChat]]:
    """Return so many of the logged chats, the newest first; those that cannot be read are left out."""
    found = []
    for path in reversed(_all(log_folder())):
        with suppress(InputError):
            found.append((path, load(path)))
        if len(found) == most:
            break
    return found


def forget_all() -> int:
    """Delete every logged chat, and return how many there were."""
    gone = 0
    for path in _all(log_folder()):
        with suppress(OSError):
            path.unlink()
            gone += 1
    return gone


def last_model() -> str | None:
    """Return the file of the newest chat's model, if it still exists."""
    model = load(newest()).model.path
    return model if model and os.path.isfile(model) else None  # noqa: PTH113 - Path's raises for some names
