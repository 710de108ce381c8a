"""One chat: its settings, what it holds, and the acts that commands and questions come down to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from pyspec.chat import files
from pyspec.chat.conversation import (
    FULL_HINT,
    Conversation,
    Exchange,
    LlamaChat,
    Reply,
    fit,
)
from pyspec.display import Screen, counted, stats_line, verdict
from pyspec.engine.handle import MAX_DRAFT
from pyspec.errors import InputError, OptionError, PyspecError
from pyspec.noise import NOISES, Noise
from pyspec.options import AnswerOptions, Speculation
from pyspec.policy.lengths import parse_length
from pyspec.rules import AUTO, Margin, Strict, Verification, as_window, parse_window
from pyspec.sampling import Sampling
from pyspec.text.parts import Piece
from pyspec.text.template import Message
from pyspec.token_view import TokenPaint, has_colour
from pyspec.tokens import common_prefix

# -- settings, by the names that `/set` takes --------------------------------------------------------------------------

Parse = Callable[[str], Any]

SHOW, HIDE, UNASKED = "show", "hide", "off"
"""What is done with reasoning: shown, not shown, or not asked for."""

SILENT, BRIEF, FULL = "off", "brief", "on"
"""How much is said after an answer."""


def _number(kind: type[int | float], low: float, high: float) -> Parse:
    def parse(text: str) -> Any:
        with suppress(ValueError):
            if low <= (value := kind(text)) <= high:
                return value
        article = "a whole number" if kind is int else "a number"
        raise OptionError(f"{text[:40]} is not {article} from {low:g} to {high:.12g}")

    return parse


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text not in words:
            raise OptionError(f"{text[:40]} is not one of {', '.join(words)}")
        return text

    return parse


def _switch(text: str) -> bool:
    return bool(_one_of("on", "off")(text) == "on")


def _length(text: str) -> str:
    parse_length(text)
    return text


def _setting(default: Any, parse: Parse, none: str = "") -> Any:
    """A field that `/set` changes: how its text is read, and the word for None."""
    return field(default=default, metadata={"parse": parse, "none": none})


_PROBABILITY, _NATS = _number(float, 0, 1), _number(float, 0, inf)


@dataclass(frozen=True)
class ChatSettings:
    """Everything that is not the conversation, by the names that `/set` takes.

    seed: None draws one for each answer. trim: drop the oldest turns when the context is full.
    reasoning: `show` it dimmed, `hide` it, or ask the model for none with `off`. stats: `brief` for a
    sentence after each answer, `on` for the counts as well, `off` for nothing. wrap: break lines between words.
    tokens: colour answers by where their tokens came from. noise: whose random numbers draw.
    """

    temp: float = _setting(0.8, _number(float, 0, 100))
    top_k: int = _setting(40, _number(int, 0, 2**31 - 1))
    top_p: float = _setting(0.95, _number(float, 1e-6, 1))
    min_p: float = _setting(0.05, _PROBABILITY)
    repeat_penalty: float = _setting(1.0, _number(float, 0.01, 100))
    seed: int | None = _setting(None, _number(int, 0, 2**32 - 1), "random")
    noise: Noise = _setting(NOISES[0], _one_of(*NOISES))
    max_tokens: int | None = _setting(None, _number(int, 1, 2**31 - 1), "all")
    verify: str = _setting(AUTO, _one_of(AUTO, "margin", "strict"))
    theta: float = _setting(Margin.theta, _PROBABILITY)
    gap: float = _setting(Margin.gap, _NATS)
    budget: float | None = _setting(None, _NATS, "none")
    confirm: int = _setting(Margin.confirm, _number(int, 0, 16))
    kl: float = _setting(Margin.kl, _NATS)
    doubt: float = _setting(Margin.doubt, _PROBABILITY)
    window: str | None = _setting(None, lambda text: str(as_window(parse_window(text))), "none")
    length: str | None = _setting(None, _length, "default")
    draft_max: int | None = _setting(None, _number(int, 0, MAX_DRAFT), "none")
    trim: bool = _setting(True, _switch)
    reasoning: str = _setting(SHOW, _one_of(SHOW, HIDE, UNASKED))
    stats: str = _setting(BRIEF, _one_of(FULL, BRIEF, SILENT))
    wrap: bool = _setting(True, _switch)
    tokens: bool = _setting(False, _switch)

    @property
    def margin(self) -> Margin:
        """The margin rule with the numbers set."""
        return Margin.of(self)

    @property
    def rule(self) -> Verification | None:
        """The rule in force; None: what the model was opened with, which a verdict of the pair says."""
        return {AUTO: None, "strict": Strict()}.get(self.verify, self.margin)

    def sampling(self, seed: int) -> Sampling:
        """How one answer's tokens are chosen."""
        return Sampling(
            temperature=self.temp, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p,
            repeat_penalty=self.repeat_penalty, seed=seed, noise=self.noise,
        )  # fmt: skip


FIELDS = {each.name: each.metadata for each in fields(ChatSettings)}
"""What is known of each setting."""


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """`settings` with one of them set from its text. Raises OptionError, naming the setting."""
    if name not in FIELDS:
        raise OptionError(f"there is no setting {name[:40]!r}", f"use {', '.join(FIELDS)}")
    known = FIELDS[name]
    try:
        parsed: Any = None if known["none"] and value == known["none"] else known["parse"](value)
    except OptionError as error:
        raise OptionError(f"{name}: {error.message}", error.hint) from None
    return replace(settings, **{name: parsed})


def values(settings: ChatSettings) -> dict[str, str]:
    """Every setting as the text that `changed` takes."""
    return {name: _text(getattr(settings, name), known["none"]) for name, known in FIELDS.items()}


def _text(value: Any, none: str) -> str:
    if value is None:
        return none
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def apply(settings: ChatSettings, saved: Mapping[str, str]) -> tuple[ChatSettings, list[str]]:
    """`settings` with saved texts put in, and a sentence for each that cannot be used."""
    refused = []
    for name, value in saved.items():
        try:
            settings = changed(settings, name, value)
        except OptionError as error:
            refused.append(error.message)
    return settings, refused


# -- the chat ----------------------------------------------------------------------------------------------------------

Guard = Callable[[Callable[[], None]], AbstractContextManager[list[int]]]
"""Makes Ctrl-C and SIGTERM call a function while inside, and lists those that came; a second one raises KeyboardInterrupt."""

Confirm = Callable[[str], bool]
"""Asks a question that is answered by yes or no."""

TERMINATED = 143
_SIGTERM = 15


@dataclass
class Chat:
    """A conversation with a model, on a screen.

    pending: text that goes in front of the next question. interrupted_at: when Ctrl-C came last.
    exit_code: of the last error, for scripts. log: where the chat is kept without being asked, None for nowhere;
    file: where it was saved to or loaded from. confirm: asks the user; None where nobody is there to answer.
    """

    model: LlamaChat
    screen: Screen
    guard: Guard
    settings: ChatSettings = ChatSettings()
    conversation: Conversation = field(default_factory=Conversation)
    pending: str = ""
    leaving: bool = False
    interrupted_at: float = float("-inf")
    exit_code: int = 0
    log: Path | None = None
    file: Path | None = None
    confirm: Confirm | None = None
    kept: bool = False

    def fail(self, error: PyspecError) -> None:
        """Say what went wrong."""
        self.screen.error(str(error))
        self.exit_code = error.exit_code

    def keep(self) -> None:
        """Write the chat to its log. One that cannot be written is said once, and ends nothing."""
        if self.log is None or not self.conversation.exchanges:
            return
        try:
            files.save(self.log, self.conversation, values(self.settings), self.model.target())
            self.kept = True
        except PyspecError as error:
            self.log = None
            self.screen.note(f"this chat is not kept: {error}")

    def send(self, text: str) -> None:
        """Answer a question; where nothing was answered, it is as if it had not been asked."""
        question = f"{self.pending}\n\n{text}" if self.pending else text
        self.conversation.exchanges.append(Exchange(question))
        if self._answer_last(self._seed(0)):
            self.pending = ""

    def regen(self) -> None:
        """Answer the last question again, with another seed; where nothing comes, keep the old."""
        old = self._last_answer("nothing was answered yet")
        if self.settings.temp == 0:
            self.screen.note("temperature is 0, so the answer is the same; /set temp 0.8 varies it")
        exchange = self.conversation.exchanges[-1]
        exchange.answer = None
        done = False
        try:
            done = self._answer_last(self._seed(old.seed + 1))
        finally:
            if not done:
                exchange.answer = old
                self.conversation.exchanges.append(exchange)

    def undo(self) -> Exchange:
        """Take the last exchange back, and return it."""
        if not self.conversation.exchanges:
            raise InputError("there is nothing to take back", "ask something first")
        return self.conversation.exchanges.pop()

    def compare_speed(self) -> None:
        """Answer the last question again without drafts, and say how fast both came; the first answer stays."""
        old = self._last_answer("nothing was answered yet, so there is nothing to compare")
        self.screen.say("--- without drafts")
        new = self._again(old, enabled=False)
        if new.stats is None or old.stats is None:
            return
        slow, fast = new.stats.rate, old.stats.rate
        self.screen.say(
            f"--- {slow:.1f} tokens/s without drafts, {fast:.1f} with drafts ({fast / max(slow, 1e-9):.1f} times); "
            f"{_difference(old, new)}"
        )

    def compare(self) -> None:
        """Answer the last question again by the other rule and show both; the first one stays.

        No speeds: lookup drafts the second answer from the first.
        """
        old = self._last_answer("nothing was answered yet, so there is nothing to compare")
        rule = old.stats.rule if old.stats else "as loaded"
        other = self.settings.margin if rule == Strict().name else Strict()
        self.screen.say(f"--- {rule}")
        with self.screen.answering(wrap=self.settings.wrap) as write:
            write(old.text)
        self.screen.say(f"--- {other.name}")
        new = self._again(old, verification=other)
        self.screen.say(f"--- {other.name}: {_difference(old, new)}")

    def _again(self, old: Reply, **speculation: Any) -> Reply:
        """Answer the last question as it was answered, whatever was set since, but for these fields of `Speculation`."""
        asked = old.asked or self._options(old.seed, self.settings.rule)
        again = replace(asked, speculation=replace(asked.speculation, **speculation))
        return self._stream(self._prompt(self.conversation.question()), again)

    def _last_answer(self, refusal: str) -> Reply:
        if (answer := self.conversation.last_answer) is None:
            raise InputError(refusal, "ask something first")
        return answer

    def _seed(self, fallback: int) -> int:
        """The seed the user fixed, moved on for another try; else one of chance."""
        fixed = self.settings.seed
        if fixed is None:
            return int.from_bytes(os.urandom(4), "little")
        return max(fixed, fallback) & 0xFFFFFFFF

    def _answer_last(self, seed: int) -> bool:
        """Answer the newest question; where nothing came, take it back and return False."""
        exchange = self.conversation.exchanges[-1]
        try:
            prompt, dropped = fit(
                self.conversation, self._prompt, self.model.n_ctx, trim=self.settings.trim
            )
            if dropped:
                gone = counted(dropped, "oldest exchange")
                self.screen.note(f"the context was full; dropped the {gone}")
            exchange.answer = self._stream(prompt, self._options(seed, self.settings.rule))
        finally:
            if exchange.answer is None:
                self.conversation.exchanges.pop()
        self._explain(exchange.answer)
        self._show_stats(exchange.answer)
        self.keep()
        if exchange.answer.finish_reason == "cancelled" and not exchange.answer.tokens:
            self.conversation.exchanges.pop()
            return False
        return True

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        self.model.thinking = self.settings.reasoning != UNASKED
        return self.model.prompt(messages)

    def _options(self, seed: int, rule: Verification | None) -> AnswerOptions:
        settings = self.settings
        return AnswerOptions(
            settings.sampling(seed),
            Speculation(verification=rule, length=settings.length, draft_max=settings.draft_max),
            settings.max_tokens,
            progress=self.screen.progress,
        )

    def _stream(self, prompt: list[int], options: AnswerOptions) -> Reply:
        """Show an answer as it comes. An error ends it; what had come is kept."""
        said: list[Piece] = []
        pieces, paint = self.model.answer(prompt, options), self._paint()
        try:
            with (
                self.screen.replying(
                    wrap=self.settings.wrap, paint=paint, reasoning=self.settings.reasoning != HIDE
                ) as write,
                self.guard(self._stop) as signals,
                closing(pieces),
            ):
                for piece in pieces:
                    said.append(piece)
                    if paint is not None:
                        paint.take(piece.tokens)
                    write(piece.reasoning, piece.text)
        except PyspecError as error:
            if not said:
                raise
            self.fail(error)
        if _SIGTERM in (signals or ()):
            self.leaving, self.exit_code = True, TERMINATED
        return Reply.of(said, options.sampling.seed, self.model.piece, self.model.stats, options)

    def _paint(self) -> TokenPaint | None:
        """What colours an answer's tokens, where that is wanted and there are colours."""
        if not (self.settings.tokens and has_colour(self.screen.out)):
            return None
        return TokenPaint(self.model.piece, colour=True)

    def _stop(self) -> None:
        self.interrupted_at = monotonic()
        self.model.cancel()

    def _explain(self, answer: Reply) -> None:
        kept = "what was said is kept" if answer.tokens else "nothing was said yet"
        notes = {
            "length": f"stopped at {counted(self.settings.max_tokens or 0, 'token')}; /set max_tokens all has no limit",
            "context": f"the context of {self.model.n_ctx} tokens is full: {FULL_HINT}",
            "cancelled": f"stopped; {kept}",
        }
        where = "inside its reasoning: " if answer.reasoning_cut else ""
        if answer.finish_reason in notes:
            self.screen.note(f"({where}{notes[answer.finish_reason]})")
        elif answer.reasoning_cut:
            self.screen.note("(the answer ended inside its reasoning)")

    def _show_stats(self, answer: Reply) -> None:
        how, stats = self.settings.stats, answer.stats
        if how == SILENT or stats is None:
            return
        self.screen.note(verdict(stats.block, stats.rate))
        if how != BRIEF:
            self.screen.note(stats_line(stats.block, stats.rate))


def _difference(old: Reply, new: Reply) -> str:
    if new.text == old.text:
        return "the same text"
    if not old.tokens:
        return "the texts differ"
    same = common_prefix(*([token.id for token in reply.tokens] for reply in (old, new)))
    return f"the texts differ after {counted(same, 'token')}"
