"""`pyspec chat`: talk with a model."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from pyspec._version import __version__
from pyspec.chat.adapter import LlamaChat
from pyspec.chat.commands import execute, run
from pyspec.chat.conversation import Conversation
from pyspec.chat.files import new_path, newest
from pyspec.chat.prompt import Reader, StreamReader, TerminalReader, WholeReader, terminal_kept
from pyspec.chat.settings import BRIEF, FULL, SILENT, ChatSettings
from pyspec.chat.talk import Chat
from pyspec.cli.command import TEXT, Subcommand, option
from pyspec.cli.engine import engine_options
from pyspec.cli.options import (
    model_options,
    open_model,
    sampling,
    sampling_options,
    speculation_options,
)
from pyspec.cli.resume import with_its_model
from pyspec.cli.streams import interruptible
from pyspec.display import STATS_HELP, Screen
from pyspec.errors import InputError
from pyspec.rules import Margin

EXAMPLES = [
    ("pyspec chat", "The default model"),
    ("pyspec chat -m llama3.2:3b --draft llama3.2:1b", "Models that ollama fetched"),
    ("pyspec chat -c", "Go on with the last chat"),
    ("git diff | pyspec chat -s 'Review this.'", "One message from a pipe, answered on stdout"),
]


@click.command(cls=Subcommand, examples=EXAMPLES, epilog=STATS_HELP)
@option(
    "-s",
    "--system",
    group="Chat",
    aliases=("-sys", "--system-prompt"),
    type=TEXT,
    help="System text.",
)
@option(
    "--continue",
    "going_on",
    group="Chat",
    is_flag=True,
    help="Go on with the last chat or answer; so does -c without a number.",
)
@option(
    "--load",
    "saved",
    group="Chat",
    type=click.Path(path_type=Path),
    help="Go on with a saved chat.",
)
@option("--log/--no-log", group="Chat", default=True, help="Keep the chat for -c.")
@option(
    "--script",
    group="Chat",
    is_flag=True,
    help="Take each line of stdin as typed, commands included; else all of it is one message.",
)
@option(
    "--trim/--no-trim",
    group="Chat",
    default=True,
    show_default=True,
    help="Drop the oldest turns when the context is full, and say so.",
)
@option(
    "-n",
    "--max-tokens",
    group="Chat",
    aliases=("--n-predict", "--predict"),
    metavar="N",
    type=click.IntRange(min=-1),
    help="Most tokens of an answer; as many as fit if not given, or -1.",
)
@model_options
@speculation_options
@sampling_options
@engine_options
@option(
    "--stats/--no-stats",
    group="Output",
    default=None,
    help="A line of statistics behind the sentence after each answer; --no-stats for neither.",
)
@option(
    "--wrap/--no-wrap",
    group="Output",
    default=True,
    help="Break lines between words on a terminal.",
)
@option(
    "--color",
    group="Output",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour of notes and of /show tokens.",
)
def chat(saved: Path | None, **options: Any) -> int:  # fmt: skip
    """Talk with a model: a line is a question, /help lists the commands.

    Without a terminal, what comes on stdin is one message, answered on stdout.
    """
    signal.signal(signal.SIGTERM, _terminate)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    resumed = _newest() if options["going_on"] else None
    options = with_its_model(options)
    model = LlamaChat(
        lambda draft, companion: open_model({**options, "draft": draft, "companion": companion}),
        options["draft"],
        options["companion"],
    )
    reader = _reader(on_terminal, options["script"])
    talk = Chat(model, _screen(options["color"]), interruptible, _settings(options))
    talk.conversation = Conversation(options["system"])
    talk.screen.wrap = options["wrap"]
    talk.confirm = reader.confirm if isinstance(reader, TerminalReader) else None
    with terminal_kept():
        if on_terminal:
            _greet(talk)
        if (path := saved or resumed) is not None:
            execute(talk, f"/load {path}")
        if options["log"]:
            talk.log = resumed or new_path()
        code = run(talk, reader)
        if on_terminal and talk.kept:
            talk.screen.note("this chat is kept; `pyspec chat -c` goes on with it")
    model.close()
    return code


def _newest() -> Path:
    if (path := newest()) is None:
        raise InputError("there is no chat to go on with", "begin one without -c")
    return path


def _greet(talk: Chat) -> None:
    model = talk.model
    drafts = f"draft {model.draft}, companion {model.companion}"
    talk.screen.note(f"pyspec {__version__}: {model.name}, {drafts}")
    talk.screen.note("/help lists the commands, Ctrl-D leaves")


def _reader(on_terminal: bool, script: bool) -> Reader:
    if on_terminal:
        return TerminalReader()
    stream = sys.stdin.buffer
    return StreamReader(stream) if script else WholeReader(stream)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


def _settings(options: Mapping[str, Any]) -> ChatSettings:
    most = options["max_tokens"]
    return ChatSettings(
        sampling=sampling(options),
        margin=Margin(options["theta"], options["gap"], options["cap"], options["budget"]),
        verify=options["verify"],
        length=options["length"],
        draft_max=options["draft_max"],
        max_tokens=None if most == -1 else most,
        seed=None if options["seed"] is None else options["seed"] & 0xFFFFFFFF,
        trim=options["trim"],
        stats={None: BRIEF, True: FULL, False: SILENT}[options["stats"]],
        wrap=options["wrap"],
    )


def _screen(color: str) -> Screen:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that lacks a character is no reason to end
    wanted = {"always": True, "never": False}.get(color)
    no_color = {"never": True, "always": False}.get(color)

    def console(*, stderr: bool) -> Console:
        return Console(
            stderr=stderr, highlight=False, emoji=False, force_terminal=wanted, no_color=no_color
        )

    return Screen(console(stderr=False), console(stderr=True))
