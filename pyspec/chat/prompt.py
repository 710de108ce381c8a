"""Reads entries from a line editor on a terminal or a stream of bytes, and runs the loop that answers them."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import BinaryIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    NestedCompleter,
    PathCompleter,
    WordCompleter,
    merge_completers,
)
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from pyspec.chat import TWICE_S
from pyspec.chat.commands import COMMANDS, execute
from pyspec.chat.dialogue import MAX_TEXT, history_file
from pyspec.chat.talk import Chat
from pyspec.errors import InputTooLong, PyspecError
from pyspec.machine.files import read_stream, utf8

PROMPT, MORE = ">>> ", "... "
QUOTE = '"""'
_INTERRUPTED = 130  # exit code


@dataclass(frozen=True)
class TypedText:
    """An entry. literal: it was quoted, and is never a command."""

    text: str
    literal: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it begins with a slash and was not quoted. Several lines are a message, except after /system."""
        one = "\n" not in self.text.strip() or self.text.startswith("/system ")
        return self.text.startswith("/") and one and not self.literal


def is_open(text: str) -> bool:
    """Whether an entry continues after this text: its quotes are open."""
    begun = text.lstrip()
    return begun.startswith(QUOTE) and QUOTE not in begun[len(QUOTE) :]


def typed(text: str) -> TypedText:
    """Return the entry of complete lines, without quotes."""
    begun = text.strip()
    if begun.startswith(QUOTE):
        inside, _, after = begun[len(QUOTE) :].partition(QUOTE)
        return TypedText((inside + after).strip("\n"), literal=True)
    return TypedText(text.rstrip())


def script_entries(stream: BinaryIO, limit: int = MAX_TEXT) -> Iterator[TypedText]:
    """Yield a script's entries, one a line, without empty ones. Raises InputEncoding, or InputTooLong above `limit` bytes."""
    lines = _lines(stream, limit)
    for line in lines:
        text = line
        while is_open(text) and (more := next(lines, None)) is not None:
            text += "\n" + more
        if (made := typed(text)).text.strip():
            yield made


def _lines(stream: BinaryIO, limit: int) -> Iterator[str]:
    for number, data in enumerate(iter(lambda: stream.readline(limit + 2), b""), start=1):
        line = data.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > limit:
            raise InputTooLong(f"line {number} is longer than {limit} bytes", "/read FILE")
        yield utf8(line, f"line {number} of stdin")


def whole_entry(stream: BinaryIO) -> Iterator[TypedText]:
    """Yield a stream as one entry, which is no command: it may be untrusted. Raises InputEncoding or InputTooLong."""
    yield TypedText(read_stream(stream, MAX_TEXT, "stdin").strip("\n"), literal=True)


class CommandCompleter(Completer):
    """Completes commands, their words, and file names."""

    def __init__(self) -> None:
        paths = [PathCompleter(expanduser=True)]
        self._commands = NestedCompleter(
            {
                name: merge_completers(
                    [WordCompleter(list(each.words), WORD=True), *paths * each.takes_file]
                )
                for each in COMMANDS
                for name in each.names.split()
            },
            ignore_case=False,
        )

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("/") and "\n" not in before:
            yield from self._commands.get_completions(Document(before[1:]), complete_event)


class TerminalReader:
    """A line editor with history, completion, several lines and $EDITOR. keeps: whether later chats have what is typed."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=_history() if keeps else InMemoryHistory(),
            completer=CommandCompleter(),
            complete_while_typing=False,
            multiline=Condition(lambda: is_open(get_app().current_buffer.text)),
            prompt_continuation=MORE,
            key_bindings=_keys(),
            enable_open_in_editor=True,
            tempfile_suffix=".txt",
        )

    def read(self) -> TypedText:
        """Return the next entry, which may be empty. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return typed(self._session.prompt())


def _keys() -> KeyBindings:
    keys = KeyBindings()
    # more came in the same read: a terminal without bracketed paste pastes, and nobody types so fast
    pasted = Condition(
        lambda: any(each.key != Keys.CPRResponse for each in get_app().key_processor.input_queue)
    )

    @keys.add("enter", filter=pasted, eager=True)
    @keys.add("c-j", filter=pasted, eager=True)
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab", filter=pasted, eager=True)
    def _tab(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\t")

    @keys.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return keys


class _Kept(FileHistory):
    """Typed lines in a file. A full disk must not prevent a chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    path = history_file()
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()  # a read-only home must not prevent a chat
    return _Kept(str(path))


_RESTORED = "\x1b[?2004l\x1b[?25h\x1b[0m\r\n"  # undoes what an interrupted editor leaves


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Show nothing of what is typed but by the line editor, and restore the terminal's state however the block is left.

    What is typed during an answer waits in the terminal's buffer for the next prompt.
    """
    state = termios.tcgetattr(sys.stdin)
    quiet = [*state]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the terminal may be gone
            sys.stdout.write(_RESTORED)
            sys.stdout.flush()
        raise
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, state)


def run(chat: Chat, entries: Iterator[TypedText], *, interactive: bool = False) -> int:
    """Answer entries until they end or a command quits, and return the exit code.

    0 after Ctrl-D or /exit on a terminal; for a script, the code of the last entry that failed. 130
    after Ctrl-C twice, or once if not interactive. Raises InputError for unreadable input.
    """
    while not chat.leaving:
        try:
            _handle(chat, next(entries))
        except (EOFError, StopIteration):
            break
        except KeyboardInterrupt:
            if not interactive or monotonic() - chat.interrupted_at < TWICE_S:
                return _INTERRUPTED
            chat.interrupted_at = monotonic()
            chat.screen.note("(Ctrl-D or /exit quits)")
        if not interactive and chat.interrupted_at > 0 and not chat.leaving:
            return _INTERRUPTED
    return 0 if interactive else chat.exit_code


def _handle(chat: Chat, entered: TypedText) -> None:
    try:
        if entered.is_command:
            execute(chat, entered.text)
        elif entered.text.strip():
            chat.send(entered.text)
    except PyspecError as error:
        chat.fail(error)
