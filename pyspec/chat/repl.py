"""The loop: entries in, answers out, until there is no more."""

from __future__ import annotations

from time import monotonic

from pyspec.chat.commands import execute
from pyspec.chat.prompt import Reader, Typed
from pyspec.chat.talk import Chat
from pyspec.errors import PyspecError

TWICE_S = 2.0
"""A second Ctrl-C within this time leaves, wherever the first one came."""

_INTERRUPTED = 130


def run(chat: Chat, reader: Reader) -> int:
    """Talk until the entries end or a command leaves; the exit code.

    0 after Ctrl-D or /exit on a terminal; for a script, the code of the last entry that failed. 130
    after Ctrl-C twice, or once where nobody is at a prompt. Raises InputError for unreadable input.
    """
    while not chat.leaving:
        try:
            _handle(chat, reader.read())
        except EOFError:
            break
        except KeyboardInterrupt:
            if not reader.interactive or monotonic() - chat.interrupted_at < TWICE_S:
                return _INTERRUPTED
            chat.interrupted_at = monotonic()
            chat.screen.note("(Ctrl-D or /exit leaves)")
        if not reader.interactive and chat.interrupted_at > 0:
            return _INTERRUPTED
    return 0 if reader.interactive else chat.exit_code


def _handle(chat: Chat, entered: Typed) -> None:
    try:
        if entered.is_command:
            execute(chat, entered.text)
        elif entered.text.strip():
            chat.send(entered.text)
    except PyspecError as error:
        chat.fail(error)
