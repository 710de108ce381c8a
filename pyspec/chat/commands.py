"""The chat commands in one table: syntax, action and completion of each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from pyspec.chat import dialogue
from pyspec.chat.talk import FIELDS, Chat, changed, values
from pyspec.errors import InputError, OptionError
from pyspec.machine.files import expanded, read_text
from pyspec.text.parts import counted

KEYS = (
    ("Ctrl-C", "stop the answer and keep its text; twice quits"),
    ("Ctrl-D", "quit"),
    ("Ctrl-G", "write the message in $EDITOR"),
    ('"""', "begin and end a message of several lines"),
    ("space", "before a / sends the line as a message"),
)

_LISTED = 15  # logged chats that /chats lists
_REMINDER = 12  # lines of the last answer to show as a reminder


@dataclass(frozen=True)
class Command:
    """One command."""

    names: str  # the first one and its synonyms, with spaces between
    run: Callable[[Chat, str], None]
    summary: str
    usage: str = ""  # how its argument is written
    words: tuple[str, ...] = ()  # completions of the argument
    takes_file: bool = False  # whether file names complete it too


def execute(chat: Chat, line: str) -> None:
    """Run a line that begins with /. Raises InputError for an unknown command."""
    name, argument = [*line[1:].split(maxsplit=1), "", ""][:2]
    command = next((each for each in COMMANDS if name in each.names.split()), None)
    if command is None:
        hint = "/help lists them"
        if "/" in name:  # the path of a file that was dropped into the terminal
            hint = "/read FILE puts a file's text before the next message"
        raise InputError(f"there is no command /{name[:40]}", hint)
    command.run(chat, argument.strip())


def unquoted(argument: str) -> str:
    """Remove the quoting that a terminal adds to the path of a dropped file, unless a file with the quoted name exists."""
    with suppress(ValueError):  # the name itself has an apostrophe
        words = shlex.split(argument)
        if len(words) == 1 and not os.path.exists(expanded(argument)):  # noqa: PTH110 - Path's raises for some names
            return words[0]
    return argument


def _help(chat: Chat, _argument: str) -> None:
    names = ["/" + command.names.replace(" ", ", /") for command in COMMANDS]
    rows = [(f"{name} {command.usage}", command.summary) for name, command in zip(names, COMMANDS)]
    chat.screen.table([*rows, *KEYS])


def _exit(chat: Chat, _argument: str) -> None:
    chat.leaving = True


def _clear(chat: Chat, _argument: str) -> None:
    chat.conversation.exchanges.clear()
    chat.pending = ""
    if chat.log is not None:
        chat.log = dialogue.new_path()  # the old conversation stays in the log
    chat.screen.note("started a new conversation; the system prompt stays")


def _undo(chat: Chat, _argument: str) -> None:
    if not chat.conversation.exchanges:
        raise InputError("there is nothing to undo", "ask something first")
    chat.screen.note(f"removed: {_beginning(chat.conversation.exchanges.pop().user)}")


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line[:60] + ("..." if len(line) > 60 else "")


def _chats(chat: Chat, argument: str) -> None:
    """List the logged chats, or go on with one of them."""
    found = dialogue.logged(_LISTED)
    if not found:
        raise InputError("no chats are logged")
    if argument:
        if not argument.isdecimal() or not 1 <= int(argument) <= len(found):
            wrong = f"{argument[:40]} is not a number from 1 to {len(found)}"
            raise InputError(wrong, "/chats lists them")
        chat.open(found[int(argument) - 1][0])
        show_last(chat)
        return
    rows = []
    for number, (path, conversation, model) in enumerate(found, start=1):
        moment = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
        first = next((each.user for each in conversation.exchanges), "")
        about = f"{moment:%Y-%m-%d %H:%M}  {model.name}  {_beginning(first)}"
        rows.append((str(number), about))
    chat.screen.table(rows)
    chat.screen.note(f"/chats N opens one, /forget deletes; they lie in {dialogue.log_folder()}")


def _forget(chat: Chat, argument: str) -> None:
    """Delete what the log has of this chat, or with `all` of every chat; nothing more of this one is kept."""
    if argument not in ("", "all"):
        raise InputError(f"{argument[:40]} is not `all`", "/forget alone deletes this chat")
    if argument:
        if chat.confirm is not None and not chat.confirm("Delete every logged chat?"):
            raise InputError("nothing was deleted")
        gone = dialogue.forget_all()
        chat.screen.note(f"deleted {counted(gone, 'logged chat')}; this one is not kept any more")
    else:
        if chat.log is not None:
            chat.log.unlink(missing_ok=True)
        chat.screen.note("this chat is forgotten, and not kept any more")
    chat.log = None


def show_last(chat: Chat) -> None:
    """Show the last question and the end of the last answer as a reminder."""
    if not chat.conversation.exchanges:
        return
    last = chat.conversation.exchanges[-1]
    chat.screen.note(f">>> {last.user}")
    if last.answer is not None:
        lines = last.answer.text.rstrip().splitlines()
        if len(lines) > _REMINDER:
            chat.screen.note("...")
        chat.screen.note("\n".join(lines[-_REMINDER:]))


def _read(chat: Chat, argument: str) -> None:
    if not argument:
        raise InputError("name a file", "/read FILE")
    path = expanded(unquoted(argument))
    text = read_text(path, dialogue.MAX_TEXT)
    if not text.strip():
        raise InputError(f"{path} is empty", "name a file with text")
    chat.pending = f"{chat.pending}\n\n{text}" if chat.pending else text
    chat.screen.note(f"{counted(len(text), 'character')} of {path} will precede the next message")


def _system(chat: Chat, argument: str) -> None:
    if not argument:
        text = chat.conversation.system
        chat.screen.say("no system prompt" if text is None else text)
        return
    chat.conversation.system = None if argument == "-" else argument
    chat.screen.note("system prompt changed; the next answer reads the whole conversation again")


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    name = {"temp": "temperature"}.get(name, name)  # as the option is called
    if not name:
        chat.screen.table(values(chat.settings).items())
        return
    if name not in FIELDS:
        raise OptionError(f"there is no setting {name[:40]!r}", "/set lists them")
    if value.strip():
        chat.settings = changed(chat.settings, name, value.strip())
        chat.set_by_user.add(name)
    chat.screen.note(f"{name} is {values(chat.settings)[name]}")


def _used(role: str) -> Callable[[Chat, str], None]:
    """Return the action of a command that loads another model for a role, or shows the current one."""

    def use(chat: Chat, argument: str) -> None:
        if argument:
            chat.model.use(**{role: unquoted(argument)})
        chat.screen.note(f"draft {chat.model.draft}, companion {chat.model.companion}")

    return use


def _model(chat: Chat, argument: str) -> None:
    """Load another target, or show what is loaded. The conversation stays, as text."""
    if argument:
        chat.model.use(model=unquoted(argument), draft="auto")
        chat.conversation.forget_tokens()
        chat.suggest()
        chat.screen.note(f"{chat.model.name}, draft {chat.model.draft}")
    else:
        chat.screen.table(chat.model.describe())


_DRAFTS, _COMPANIONS = ("none", "lookup", "mtp", "lookup+mtp", "auto"), ("none", "auto")

COMMANDS = (
    Command("help ?", _help, "list the commands"),
    Command("exit quit bye", _exit, "quit"),
    Command("clear", _clear, "start a new conversation with the same system prompt"),
    Command("regen", lambda chat, _: chat.regen(), "answer the last question again"),
    Command("continue", lambda chat, _: chat.go_on(), "go on with an answer that was cut"),
    Command("undo", _undo, "remove the last question and its answer"),
    Command("chats", _chats, "list earlier chats, or open one of them", "[N]"),
    Command("forget", _forget, "delete what is kept of this chat, or of all", "[all]", ("all",)),
    Command("read", _read, "put a text file before the next message", "FILE", takes_file=True),
    Command("system", _system, "set the system prompt, or with - remove it; without a text, show it", "TEXT"),
    Command("set", _set, "change a setting, or show it; without a name, all of them", "NAME VALUE", (*FIELDS,)),
    Command("model", _model, "switch to another model; without a name, show what is loaded", "NAME|FILE", takes_file=True),
    Command("draft", _used("draft"), "choose what drafts", "NAME|none|lookup|mtp|auto", _DRAFTS, takes_file=True),
    Command("companion", _used("companion"), "choose what judges drafts", "NAME|none", _COMPANIONS, takes_file=True),
)  # fmt: skip
