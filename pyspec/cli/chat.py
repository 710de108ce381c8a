"""`pyspec chat`: talk with a model."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from pyspec._version import __version__
from pyspec.chat.adapter import LlamaChat
from pyspec.chat.commands import execute
from pyspec.chat.conversation import Conversation
from pyspec.chat.prompt import StreamReader, TerminalReader, terminal_kept
from pyspec.chat.render import Screen
from pyspec.chat.repl import run
from pyspec.chat.settings import Settings
from pyspec.chat.talk import Chat
from pyspec.cli.interrupt import interruptible
from pyspec.cli.options import (
    model_options,
    open_model,
    sampling,
    sampling_options,
    speculation_options,
)
from pyspec.rules import Margin


@click.command()
@model_options
@speculation_options
@sampling_options
@click.option("-n", "--max-tokens", type=click.IntRange(min=1), help="Most tokens of an answer.")
@click.option("-s", "--system", help="System text.")
@click.option("--load", "saved", type=click.Path(path_type=Path), help="Go on with a saved chat.")
@click.option("--trim", is_flag=True, help="Drop the oldest turns when the context is full.")
@click.option("--stats/--no-stats", default=True, help="A line of statistics after each answer.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
def chat(saved: Path | None, **options: Any) -> None:
    """Talk with a model: a line is a question, /help lists the commands.

    Without a terminal, each line of stdin is answered on stdout, and the exit code is that of the
    last one that failed.
    """
    signal.signal(signal.SIGTERM, _terminate)
    settings = _settings(options)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    model = LlamaChat(
        lambda draft, companion: open_model({**options, "draft": draft, "companion": companion}),
        options["draft"],
        options["companion"],
    )
    talk = Chat(model, _screen(options["color"]), interruptible, settings)
    talk.conversation = Conversation(options["system"])
    with terminal_kept():
        if saved is not None:
            execute(talk, f"/load {saved}")
        if on_terminal:
            talk.screen.note(
                f"pyspec {__version__}: {model.name}, "
                f"draft {model.draft}, companion {model.companion}"
            )
            talk.screen.note("/help lists the commands, Ctrl-D leaves")
        code = run(talk, TerminalReader() if on_terminal else StreamReader(sys.stdin.buffer))
    model.close()
    sys.exit(code)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


def _settings(options: dict[str, Any]) -> Settings:
    return Settings(
        sampling=sampling(options),
        margin=Margin(options["theta"], options["gap"], options["cap"], options["budget"]),
        verify=options["verify"],
        length=options["length"],
        draft_max=options["draft_max"],
        max_tokens=options["max_tokens"],
        seed=None if options["seed"] is None else options["seed"] & 0xFFFFFFFF,
        trim=options["trim"],
        stats=options["stats"],
    )


def _screen(color: str) -> Screen:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that lacks a character is no reason to end
    wanted = {"always": True, "never": False}.get(color)
    no_color = True if color == "never" else None

    def console(*, stderr: bool) -> Console:
        return Console(
            stderr=stderr, highlight=False, emoji=False, force_terminal=wanted, no_color=no_color
        )

    return Screen(console(stderr=False), console(stderr=True))
