"""A model of the chat protocol that answers from a list, one character a token."""

import io
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from pyspec.chat import dialogue
from pyspec.chat.dialogue import SavedModel
from pyspec.chat.prompt import run, script_entries
from pyspec.chat.talk import Chat, ChatSettings, Guard
from pyspec.engine.options import AnswerOptions
from pyspec.errors import DraftMismatch, NumericError
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Strict
from pyspec.screen import Screen
from pyspec.text.messages import Message
from pyspec.text.parts import AnswerPart, Piece, Source, Token, common_prefix

DEFAULTS, QUIET = ChatSettings(), ChatSettings(stats="off")

END = 2
"""The id that ends turns; it has no bytes, like any control token."""


class Asked(NamedTuple):
    """What one answer was asked for."""

    prompt: list[int]
    sampling: Sampling


@dataclass
class FakeModel:
    """Says its answers in turn. Token ids are code points; turns are written `R:text` + END.

    cancel_after: pieces after which `cancel` is called from inside, as by Ctrl-C. fail_after: pieces after which it fails.
    """

    answers: list[str]
    n_ctx: int = 1000
    draft: str = "lookup"
    companion: str = "none"
    name: str = "fake"
    cancel_after: int | None = None
    fail_after: int | None = None
    finish: str = "stop"
    asked: list[Asked] = field(default_factory=list)
    turns: list[list[Message]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    cancelled: bool = False
    stats: dict[str, Any] | None = None
    suggested: dict[str, float] = field(default_factory=dict)
    limit: None = None

    def prompt(self, messages: Sequence[Message], *, goes_on: bool = False) -> list[int]:
        ids: list[int] = []
        self.turns.append([*messages])
        for message in messages:
            ids += [ord(message["role"][0].upper()), ord(":")]
            ids += message.get("tokens") or [ord(c) for c in message["content"]]
            ids.append(END)
        return ids[:-1] if goes_on else [*ids, ord("A"), ord(":")]

    def piece(self, token: int) -> bytes:
        """The code point's bytes."""
        return b"" if token == END else chr(token).encode()

    def answer(self, prompt: list[int], options: AnswerOptions) -> Generator[Piece, None, None]:
        rule = options.speculation.verification or Strict()
        self.asked.append(Asked(prompt, options.sampling))
        self.cancelled, kept = False, common_prefix(prompt, self.held)
        words = self.answers[(len(self.asked) - 1) % len(self.answers)]
        said: list[Token] = []
        try:
            for number, char in enumerate(words):
                if self.cancelled:
                    yield Piece((), "cancelled")
                    return
                if number == self.fail_after:
                    raise NumericError("a logit is not finite")
                said.append(_token(char, relaxes=rule.name == "margin"))
                if self.cancel_after == number + 1:
                    self.cancel()
                yield Piece((said[-1],), parts=[AnswerPart("content", char)])
            ending = (Token(END, Source.TARGET, 0.0, END),) if self.finish == "stop" else ()
            yield Piece(ending, self.finish)
        finally:
            self.held = [*prompt, *(token.id for token in said)]
            self.stats = self._stats(said, len(prompt), kept)

    def _stats(self, said: list[Token], size: int, kept: int) -> dict[str, Any]:
        taken = sum(token.source is not Source.TARGET for token in said)
        relaxed = sum(token.source is Source.RELAXED for token in said)
        return {
            "rounds": len(said), "mean_length": 1.0, "drafted": taken, "verified": taken, "accepted": taken,
            "relaxed": relaxed, "relaxed_nats": 0.25 * relaxed, "prompt_tokens": size, "prompt_kept": kept,
            "draft": self.draft, "companion": self.companion, "times_plain": 2.0,
            "plain": {"tokens_per_second": 25.0, "error": 0.02},
            "timings": {"tokens_per_second": 50.0, "first_token_ms": 1.0, "total_ms": 2.0},
        }  # fmt: skip

    def cancel(self) -> None:
        self.cancelled = True

    def use(
        self, *,
        draft: str | None = None, companion: str | None = None, model: str | None = None,
    ) -> None:  # fmt: skip
        """Take the names; `alien` does not fit."""
        self.name = model or self.name
        if draft == "alien":
            raise DraftMismatch("the draft speaks another vocabulary", "--draft none")
        self.draft, self.companion = draft or self.draft, companion or self.companion

    def target(self) -> SavedModel:
        return SavedModel(self.name)


def _token(char: str, *, relaxes: bool) -> Token:
    """A digit was drafted; a tilde was, too, where the rule is relaxed, in place of a hyphen."""
    if relaxes and char == "~":
        return Token(ord(char), Source.RELAXED, 0.25, ord("-"))
    return Token(ord(char), Source.ACCEPTED if char.isdigit() else Source.TARGET, 0.0, ord(char))


def no_guard(_cancel: object) -> AbstractContextManager[list[int]]:
    """A guard under which Ctrl-C does what Python does."""
    return nullcontext([])


def screen(*, colour: bool = False) -> tuple[Screen, io.StringIO]:
    """A screen whose answers and notes go to one text, in the order they are written."""
    text = io.StringIO()
    how = "standard" if colour else None
    console = Console(file=text, highlight=False, force_terminal=colour, color_system=how)
    return Screen(console, console), text


def talk(
    model: FakeModel, settings: ChatSettings = DEFAULTS, guard: Guard = no_guard
) -> tuple[Chat, io.StringIO]:
    shown, text = screen()
    return Chat(model, shown, guard, settings), text


def said(path: Path) -> list[str]:
    """Questions and answers of a logged chat."""
    found, _ = dialogue.load(path)
    return [turn["content"] for turn in found.messages()]


def session(model: FakeModel, lines: str, settings: ChatSettings = QUIET) -> tuple[int, str]:
    """The exit code and the whole output of a scripted session."""
    chat, text = talk(model, settings)
    return run(chat, script_entries(io.BytesIO(lines.encode()))), text.getvalue()
