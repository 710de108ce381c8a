"""The conversation of a chat: its turns, the prompt made from them, and the log for `--continue`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from pyspec.errors import ContextOverflow, InputError
from pyspec.machine.files import expanded, parse, read_named, write_whole
from pyspec.text.messages import Message
from pyspec.text.parts import Result, Token, counted

Encode = Callable[[Sequence[Message]], list[int]]

FULL_HINT = "/clear or /undo makes room, -c N has more"
MAX_TEXT = 1 << 20  # largest text file to read, or line to type, bytes
_MAX_SESSION = 1 << 26
MAX_CHATS = 500  # most logged chats; the oldest are deleted


def log_folder() -> Path | None:
    """Return the folder of the log of chats and answers; None for no log."""
    return _state_path("PYSPEC_CHATS", "chats")


def history_file() -> Path | None:
    """Return the file of typed lines; None for no history."""
    return _state_path("PYSPEC_CHAT_HISTORY", "chat-history")


def _state_path(variable: str, name: str) -> Path | None:
    """Return a path for user state: from the variable, None if that is empty, else in the platform's folder."""
    named = os.environ.get(variable)
    if named is None:
        import platformdirs  # noqa: PLC0415 - a variable may name the folder

        return platformdirs.user_state_path("pyspec", appauthor=False) / name
    return expanded(named) if named else None


@dataclass
class Exchange:
    """A question, and its answer once there is one."""

    user: str
    # its tokens lack the last one, and all if it was read from the log or made by another model
    answer: Result | None = None
    seed: int = 0  # the sampler's


@dataclass
class Conversation:
    """A system prompt and exchanges, oldest first."""

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def forget_tokens(self) -> None:
        """Keep only the text of answers: another model has other tokens, and another speed."""
        for exchange in self.exchanges:
            if exchange.answer is not None:
                exchange.answer = replace(exchange.answer, tokens=(), speculation={})

    def messages(self, first: int = 0) -> list[Message]:
        """The turns from exchange `first` on, after the system turn."""
        turns = [Message(role="system", content=self.system)] if self.system is not None else []
        for exchange in self.exchanges[first:]:
            turns.append(Message(role="user", content=exchange.user))
            if exchange.answer is not None:
                turns.append(_turn(exchange.answer))
        return turns


def fit(talk: Conversation, encode: Encode, n_ctx: int) -> tuple[list[int], int]:
    """Make the prompt for the newest question; return it and how many of the oldest exchanges were dropped.

    Exchanges are dropped when less than an eighth of the context is left for the answer, until three eighths are free:
    dropping few at a time would reread the rest in every turn. The system turn and the newest question stay.
    Raises ContextOverflow if they do not fit.
    """
    prompt = encode(talk.messages())
    dropped = 0
    if len(prompt) > n_ctx - n_ctx // 8:
        while len(prompt) > n_ctx - 3 * n_ctx // 8 and dropped + 1 < len(talk.exchanges):
            dropped += 1
            prompt = encode(talk.messages(first=dropped))
    if len(prompt) >= n_ctx:
        raise ContextOverflow(n_ctx, len(prompt), FULL_HINT)
    del talk.exchanges[:dropped]
    return prompt, dropped


def _turn(answer: Result) -> Message:
    """Return an answer as a turn, with its tokens as generated, so that the KV cache stays a valid prefix."""
    message = Message(role="assistant", content=answer.text)
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tokens:
        message["tokens"] = [token.id for token in answer.tokens]
    return message


def unended(answer: Result, piece: Callable[[int], bytes]) -> Result:
    """Return an answer without the tokens that ended it, as a conversation keeps it."""
    tokens = answer.tokens
    if not answer.reasoning:
        tokens = spoken(tokens, answer.text, piece)
    elif tokens and not piece(tokens[-1].id):
        tokens = tokens[:-1]
    return replace(answer, tokens=tokens)


def why_cut(answer: Result, most: int, n_ctx: int, longer: str, wider: str) -> str:
    """Say why an answer was cut and what to do about it; empty if it ended by itself.

    most: the token limit, 0 for none. longer, wider: what to do for more tokens, and for more context.
    """
    where = " inside its reasoning" if answer.reasoning_cut else ""
    if answer.finish_reason == "length" and most > 0:
        return f"stopped at {counted(most, 'token')}{where}; {longer}"
    if answer.finish_reason == "context":
        return f"stopped{where}: the context of {n_ctx} tokens is full; {wider}"
    return f"the answer ended{where}" if where else ""


def spoken(tokens: Sequence[Token], text: str, piece: Callable[[int], bytes]) -> tuple[Token, ...]:
    """Return the tokens that make up `text`, without the token or stop string that ended it."""
    size, most = 0, len(text.encode("utf-8", "replace"))
    for n, token in enumerate(tokens):
        data = piece(token.id)
        size += len(data)
        if size > most or not data:
            return tuple(tokens[:n])
    return tuple(tokens)


class SavedMessage(msgspec.Struct, omit_defaults=True):
    """One turn in the log, as text: tokens of a file could slip control tokens into a prompt."""

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
    """The content of a file of the log."""

    kind: Literal["pyspec-chat"]
    format: Literal[1]
    pyspec: str
    model: SavedModel
    messages: list[SavedMessage]


def save(path: Path, conversation: Conversation, model: SavedModel) -> None:
    """Write a conversation for its owner alone. Raises InputError if that fails."""
    from pyspec._version import __version__  # noqa: PLC0415 - found when asked for

    turns = _messages(conversation)
    saved = SavedChat("pyspec-chat", 1, __version__, model, turns)
    data = msgspec.json.format(msgspec.json.encode(saved), indent=1)
    try:
        write_whole(path, [data, b"\n"])
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _messages(conversation: Conversation) -> list[SavedMessage]:
    turns = [] if conversation.system is None else [SavedMessage("system", conversation.system)]
    for exchange in conversation.exchanges:
        turns.append(SavedMessage("user", exchange.user))
        if (answer := exchange.answer) is not None:
            how = answer.finish_reason, exchange.seed, answer.reasoning
            turns.append(SavedMessage("assistant", answer.text, *how))
    return turns


def load(path: Path) -> tuple[Conversation, SavedModel]:
    """Read a logged chat, and the model that it was held with. Raises InputError for anything else."""
    try:
        saved = parse(read_named(path, _MAX_SESSION), SavedChat)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} is not a logged chat: {reason}") from None
    return _restored(saved), saved.model


def _restored(saved: SavedChat) -> Conversation:
    """Return the saved conversation. Raises InputError if turns do not alternate."""
    conversation = Conversation()
    for index, message in enumerate(saved.messages):
        last = conversation.exchanges[-1] if conversation.exchanges else None
        if message.role == "system" and index == 0:
            conversation.system = message.content
        elif message.role == "user" and (last is None or last.answer is not None):
            conversation.exchanges.append(Exchange(message.content))
        elif message.role == "assistant" and last is not None and last.answer is None:
            last.seed, ended = message.seed & 0xFFFFFFFF, message.finish_reason
            last.answer = Result(
                text=message.content, finish_reason=ended, reasoning=message.reasoning
            )
        else:
            what = f"message {index + 1} is a {message.role} turn in the wrong place"
            raise InputError(what, "user and assistant alternate after one system turn")
    if conversation.exchanges and conversation.exchanges[-1].answer is None:
        conversation.exchanges.pop()
    return conversation


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
        raise InputError("there is nothing to continue", "ask something first, without --continue")
    return chats[-1]


def _all(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    dated = []
    for path in folder.glob("*.json"):
        with suppress(OSError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated)]


def logged(most: int) -> list[tuple[Path, Conversation, SavedModel]]:
    """Return so many of the logged chats, the newest first; those that cannot be read are left out."""
    found = []
    for path in reversed(_all(log_folder())):
        with suppress(InputError):
            found.append((path, *load(path)))
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
    model = load(newest())[1].path
    return model if model and os.path.isfile(model) else None  # noqa: PTH113 - Path's raises for some names
