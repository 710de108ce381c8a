"""`pyspec chat`: talk with a model."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace

import click
from prompt_toolkit.shortcuts import confirm

from pyspec._version import __version__
from pyspec.chat.commands import show_last
from pyspec.chat.dialogue import Conversation, last_model, new_path, newest
from pyspec.chat.prompt import TerminalReader, run, script_entries, terminal_kept, whole_entry
from pyspec.chat.talk import BRIEF, FULL, SILENT, Chat, ChatSettings, LlamaChat
from pyspec.cli.command import command, option
from pyspec.cli.opening import find, interruptible, open_model
from pyspec.cli.options import (
    DialogueOptions,
    DraftOptions,
    EngineOptions,
    KeptOptions,
    ModelOptions,
    SamplerOptions,
    ShownOptions,
)
from pyspec.screen import new_screen

EXAMPLES = [
    ("pyspec chat", "The default model"),
    ("pyspec chat -m llama3.1:8b --draft llama3.2:1b", "Models from ollama"),
    ("pyspec chat --continue", "Continue the last chat"),
    ("git diff | pyspec chat -s 'Review this.'", "One message from a pipe, answered on stdout"),
]


@dataclass(frozen=True)
class TalkOptions(KeptOptions, DialogueOptions):
    """The conversation and how to show it."""

    # fmt: off
    history: bool = option("Conversation", "--history/--no-history", default=True,
        help="Keep the chat and typed lines, or nothing.")
    script: bool = option("Conversation", "--script", is_flag=True,
        help="Take each line of stdin as typed, not all as one message.")
    max_tokens: int | None = option("Conversation", "-n", "--max-tokens", aliases=("--n-predict", "--predict"), metavar="N",
        type=click.IntRange(min=-1), help="Longest answer, tokens; if not given, as fits.")
    # fmt: on

    def settings(
        self, drafts: DraftOptions, sampler: SamplerOptions, shown: ShownOptions
    ) -> ChatSettings:
        """Return the initial values of what `/set` changes."""
        sampling = sampler.sampling()  # refuses impossible numbers, as the verification rule does
        initial = {**sampler.filled(), **vars(drafts)}
        initial["dry_sequence_breakers"] = sampling.dry_sequence_breakers
        initial |= {"reasoning": shown.reasoning, "reasoning_budget": shown.reasoning_budget}
        initial["seed"] = None if sampler.seed is None else sampler.seed & 0xFFFFFFFF
        initial["max_tokens"] = None if self.max_tokens == -1 else self.max_tokens
        return ChatSettings(**initial, stats={None: BRIEF, True: FULL, False: SILENT}[shown.stats])


@command(examples=EXAMPLES)
def chat(
    options: TalkOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
    shown: ShownOptions,
) -> int:
    """Chat with a model: each line is a message; /help lists the commands.

    Without a terminal, stdin is one message and the answer goes to stdout.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    resumed = newest() if options.going_on else None
    if options.going_on and models.model is None:
        models = replace(models, model=last_model())
    settings = options.settings(drafts, sampler, shown)
    model = LlamaChat(
        lambda **other: open_model(replace(models, **other), drafts, engine, options.memory),
        options.prompt_cache,
        lambda **other: find(replace(models, **other)),
        models.model,
        options.cache_ram,
    )
    talk = Chat(model, new_screen(), interruptible, settings)
    talk.conversation = Conversation(options.system)
    talk.set_by_user |= sampler.given
    if on_terminal:
        editor = TerminalReader(keeps=options.history)
        talk.confirm, entries = confirm, iter(editor.read, None)
    else:
        entries = (script_entries if options.script else whole_entry)(sys.stdin.buffer)
        if sys.stdin.isatty() and not options.script:
            talk.screen.note("reading one message from stdin; Ctrl-D ends it")
    with terminal_kept() if on_terminal else nullcontext():
        if on_terminal:
            talk.screen.note(f"pyspec {__version__}: {model.name}, draft {model.draft}")
            talk.screen.note("/help lists the commands, Ctrl-D quits")
        talk.suggest()
        if options.log and options.history:
            talk.log = resumed or new_path()
        if resumed is not None:
            talk.open(resumed, options.system)
            show_last(talk)
        code = run(talk, entries, interactive=on_terminal)
        if on_terminal and talk.log is not None and talk.log.exists():
            others = "`pyspec chat --continue` continues it, /chats lists others"
            talk.screen.note(f"this chat is saved; {others}")
    model.close()
    return code
