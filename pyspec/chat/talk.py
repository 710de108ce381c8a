"""A chat: the model that answers it, its settings and state, and the actions behind commands and questions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, fields, make_dataclass, replace
from math import inf, isnan
from pathlib import Path
from signal import SIGTERM
from time import monotonic, time
from typing import Any

import click
from msgspec.structs import replace as replace_fields

from pyspec.chat import HIDE, SHOW, UNASKED, dialogue
from pyspec.chat.dialogue import (
    FULL_HINT,
    Conversation,
    Exchange,
    SavedModel,
    fit,
    unended,
    why_cut,
)
from pyspec.draft.policies import parse_length
from pyspec.engine.handle import Role
from pyspec.engine.kept import MIN_TOKENS, ParkedTexts, PromptCache, room_for_parked
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.errors import InputError, OptionError, PyspecError
from pyspec.llama.generation import stream_text
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.files import as_text
from pyspec.machine.others import name_of
from pyspec.sampling.options import (
    DRY_BREAKERS,
    MAX_DRAFT,
    MAX_TOKENS,
    NOISES,
    Noise,
    SamplerNumbers,
    Sampling,
    chance_seed,
    numbers,
    suggested_by,
    suggestion,
)
from pyspec.sampling.verification import Margin, Strict, Verification
from pyspec.screen import Screen
from pyspec.text.answer import ReasoningLimit
from pyspec.text.messages import Message
from pyspec.text.parts import Piece, Result, common_prefix, counted, result_of
from pyspec.text.template import ChatTemplate

# -- the model ---------------------------------------------------------------------------------------------------------


class LlamaChat:
    """A model to chat with; one context serves all turns. One answer at a time; only `cancel` is for other threads, too."""

    def __init__(
        self,
        opener: Callable[..., SpeculativeLlama],  # takes model=, draft= or companion= from `use`
        prompt_cache: Path | None = None,  # keeps the processed context when the model is closed
        check: Callable[..., object] = lambda **_: None,  # raises for models that do not exist
        called: str | None = None,  # the user's name for the target
        cache_ram: int | None = None,  # MiB for conversations that gave way; None for an eighth
    ) -> None:
        self._opener, self._kept_in, self._check = opener, prompt_cache, check
        self._called, self._cache_ram = called, cache_ram
        self._open({})
        self._cancelled = False
        self.thinking = True  # False asks the template for no reasoning, if it supports that
        self.budget = -1  # most tokens of reasoning, -1 for any
        self._begun = time()  # a fixed date for the template, so that prompts keep their prefix

    def target(self) -> SavedModel:
        path = Path(self.llm.model_path)
        return SavedModel(as_text(name_of(path)), as_text(path.absolute()))

    def prompt(self, messages: Sequence[Message], *, goes_on: bool = False) -> list[int]:
        """Tokenize the messages as a prompt for the next answer. goes_on: it goes on with the last message."""
        speech, limit = self.llm.speech, self.limit
        arguments = speech.arguments({}, None if limit is None else limit.tokens)
        if not self.thinking:
            arguments |= speech.quiet
        return self.template.prompt(
            messages, arguments=arguments or None, now=self._begun, goes_on=goes_on
        )

    @property
    def limit(self) -> ReasoningLimit | None:
        """The budget as an option of answers."""
        return None if self.budget < 0 else ReasoningLimit(self.budget)

    def cancel(self) -> None:
        """End the current answer; safe from any thread."""
        self._cancelled = True  # the engine resets its own flag at each call of `steps`
        self.llm.cancel()

    def describe(self) -> list[tuple[str, str]]:
        """Return names and values that describe what is loaded."""
        return [
            ("target", self.name),
            ("file", self.llm.model_path),
            ("draft", self.draft),
            ("companion", self.companion),
            ("context", f"{self.n_ctx} tokens"),
            ("template", self.template.name),
        ]

    def close(self) -> None:
        """Free the models, and keep what was learned for the next process."""
        if self.stats is not None and self.llm.is_open:
            self._cache.keep(self.llm.input_ids[: self.llm.n_tokens].tolist())
        self.llm.close()

    def use(self, **other: str) -> None:
        """Reopen with another model, draft or companion; after an error, as before. An unknown name changes nothing."""
        wanted = self._other | other
        self._check(**wanted)
        self.close()  # first: two targets need not fit into memory
        try:
            self._open(wanted)
        except (PyspecError, KeyboardInterrupt):
            self._open(self._other)
            raise

    def _open(self, other: dict[str, str]) -> None:
        self.llm = self._opener(**other)
        self.piece = self.llm.piece  # returns the bytes of a token
        self._cache = PromptCache(self.llm, self._kept_in)
        self._restored = False
        parts = self.llm.assembly.engine, {Role.TARGET: self.llm.ctx}
        self._parked = ParkedTexts(*parts, room_for_parked(self._cache_ram))
        self.stats: dict[str, Any] | None = None  # of the last answer, None if nothing was decoded
        self.name, self.n_ctx = name_of(Path(self.llm.model_path)), int(self.llm.n_ctx())
        self.draft, self.companion = self.llm.assembly.parts.names
        self.template = ChatTemplate.of(self.llm)
        called = other.get("model", self._called) or ""
        self.suggested = suggested_by(Path(self.llm.model_path), called)
        self._other = other

    def answer(
        self, prompt: Sequence[int], options: AnswerOptions, *, chat: bool = True
    ) -> Generator[Piece, None, None]:
        """Answer a prompt; the last piece has a finish_reason. chat: whether the template's stop strings apply."""
        self._cancelled, self.stats = False, None
        stop = (*options.stop, *self.template.stop) if chat else options.stop
        return self._pieces(prompt, replace(options, stop=stop), chat=chat)

    def _change_to(self, prompt: Sequence[int]) -> None:
        """Let the conversation in the context give way to one that a prompt goes on with, if that gave way before."""
        llm = self.llm
        held = llm.input_ids[: llm.n_tokens].tolist()
        same = common_prefix(held, prompt)
        if len(held) - same >= max(MIN_TOKENS, same):
            self._parked.park(0, held, "")
        found = self._parked.fetch(prompt, "", same + MIN_TOKENS)
        if found is not None and (n := self._parked.restore(found, 0, prompt)):
            llm.context_text.hold(prompt[:n])

    def _pieces(
        self, prompt: Sequence[int], options: AnswerOptions, *, chat: bool
    ) -> Generator[Piece, None, None]:
        before = self.llm.last_speculation
        if not self._restored:
            self._restored = True
            self._cache.restore(prompt)
        self._change_to(prompt)

        def reading(done: int, total: int) -> None:
            if self._cancelled:  # cancelled before the engine started
                self.llm.cancel()
            if options.progress is not None:
                options.progress(done, total)

        pieces = stream_text(self.llm, prompt, options, progress=reading, chat=chat)
        try:
            with closing(pieces):
                for piece in pieces:
                    ended = "cancelled" if self._cancelled else piece.finish_reason
                    yield replace_fields(piece, finish_reason=ended)
                    if ended:
                        return
        finally:
            if self.llm.last_speculation is not before:  # else nothing was decoded
                self.stats = self.llm.last_speculation


# -- settings ----------------------------------------------------------------------------------------------------------

SILENT, BRIEF, FULL = "off", "brief", "on"  # how many statistics to print after an answer


def _setting(default: Any, kind: Any, none: str = "") -> Any:
    """Return a field that `/set` changes. kind: the type of click that reads its text. none: the word for None."""
    return field(default=default, metadata={"kind": kind, "none": none})


def _number(kind: type[int | float], low: float, high: float) -> Any:
    whole = kind is int
    return click.IntRange(int(low), int(high)) if whole else click.FloatRange(low, high)


def _length(text: str) -> str:
    parse_length(text)
    return text


def number_settings(kind: type[SamplerNumbers] = SamplerNumbers) -> list[tuple[str, Any, Any]]:
    offered = (each for each in numbers(kind) if each.offered)
    return [(n.name, n.kind, _setting(n.default, _number(n.kind, *n.usual))) for n in offered]


_Numbers: Any = make_dataclass("_Numbers", number_settings(), frozen=True)
_PROBABILITY, _NATS = _number(float, 0, 1), _number(float, 0, inf)


@dataclass(frozen=True)
class ChatSettings(_Numbers):  # type: ignore[misc]  # its first fields come from the table
    """All settings of a chat, by their `/set` names."""

    # None draws one for each answer
    seed: int | None = _setting(None, _number(int, 0, 2**32 - 1), "random")
    noise: Noise = _setting(NOISES[0], click.Choice(NOISES))
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS  # by its option alone
    max_tokens: int | None = _setting(None, _number(int, 1, MAX_TOKENS), "all")
    verify: str = _setting(Strict.name, click.Choice([Strict.name, Margin.name]))
    theta: float = _setting(Margin.theta, _PROBABILITY)
    gap: float = _setting(Margin.gap, _NATS)
    budget: float | None = _setting(None, _NATS, "none")
    confirm: int = _setting(Margin.confirm, _number(int, 0, 16))
    length: str | None = _setting(None, click.types.FuncParamType(_length), "default")
    draft_max: int | None = _setting(None, _number(int, 0, MAX_DRAFT), "none")
    # dimmed, hidden, or asked of the model not at all
    reasoning: str = _setting(SHOW, click.Choice([SHOW, HIDE, UNASKED]))
    reasoning_budget: int = _setting(-1, _number(int, -1, MAX_TOKENS))
    # a sentence after each answer, the counts as well, or nothing
    stats: str = _setting(BRIEF, click.Choice([FULL, BRIEF, SILENT]))
    wrap: bool = _setting(True, click.BOOL)
    tokens: bool = _setting(False, click.BOOL)  # colour answers by where their tokens came from

    @property
    def rule(self) -> Verification:
        return Strict() if self.verify == Strict.name else Margin.of(self)

    def sampling(self, seed: int) -> Sampling:
        known = {each.name for each in fields(Sampling)}
        own = {name: value for name, value in vars(self).items() if name in known}
        return Sampling(**own | {"seed": seed})


FIELDS = {each.name: each.metadata for each in fields(ChatSettings) if each.metadata}
"""What is known of each setting."""


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """Return `settings` with one value set from text. Raises OptionError, which names the setting."""
    kind, none = FIELDS[name]["kind"], FIELDS[name]["none"]
    try:
        parsed: Any = None if none and value == none else kind.convert(value, None, None)
    except (OptionError, click.BadParameter) as error:
        raise OptionError(f"{name}: {error.message.rstrip('.')}") from None
    if isinstance(parsed, float) and isnan(parsed):
        raise OptionError(f"{name}: {value} is no number")
    return replace(settings, **{name: parsed})


def values(settings: ChatSettings) -> dict[str, str]:
    """Return all settings as text that `changed` accepts."""
    return {name: _text(getattr(settings, name), known["none"]) for name, known in FIELDS.items()}


def _text(value: Any, none: str) -> str:
    if value is None:
        return none
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


# -- the chat ----------------------------------------------------------------------------------------------------------

Guard = Callable[[Callable[[], None]], AbstractContextManager[list[int]]]
"""Makes Ctrl-C and SIGTERM call a function in the body, and lists the signals; a second one raises KeyboardInterrupt."""

_CUT = ("length", "context", "cancelled")  # ends of answers that can go on


@dataclass
class Chat:
    """A conversation with a model, on a screen."""

    model: LlamaChat
    screen: Screen
    guard: Guard
    settings: ChatSettings = ChatSettings()
    conversation: Conversation = field(default_factory=Conversation)
    pending: str = ""  # text to put in front of the next question
    leaving: bool = False
    interrupted_at: float = float("-inf")  # time of the last Ctrl-C
    exit_code: int = 0  # of the last error, for scripts
    log: Path | None = None  # keeps the chat automatically
    confirm: Callable[[str], bool] | None = None  # asks the user; None if no user is present
    set_by_user: set[str] = field(default_factory=set)  # no model's suggestions change these
    _suggested: frozenset[str] = frozenset()

    def suggest(self) -> None:
        """Sample as the model suggests, except where the user has set something else; the former model's suggestions end."""
        found = self.model.suggested
        new = {name: v for name, v in found.items() if name not in self.set_by_user}
        old = {name: getattr(ChatSettings, name) for name in self._suggested - self.set_by_user}
        self.settings, self._suggested = replace(self.settings, **{**old, **new}), frozenset(new)
        if sentence := suggestion(found, self.set_by_user):
            self.screen.note(sentence)

    def fail(self, error: PyspecError) -> None:
        self.screen.note(str(error), "red")
        self.exit_code = error.exit_code

    def keep(self) -> None:
        """Write the chat to its log. A failure is reported once and turns the log off."""
        if self.log is None or not self.conversation.exchanges:
            return
        try:
            dialogue.save(self.log, self.conversation, self.model.target())
        except PyspecError as error:
            self.log = None
            self.screen.note(f"this chat is not saved: {error}")

    def open(self, path: Path, system: str | None = None) -> None:
        """Go on with a logged chat, in its own file if this one is logged. system: in place of its system prompt."""
        conversation, model = dialogue.load(path)
        if system is not None:
            conversation.system = system
        self.conversation, self.pending = conversation, ""
        if self.log is not None:
            self.log = path  # the former conversation stays in its own file
        if model.name != (name := self.model.target().name):
            self.screen.note(f"this conversation was held with {model.name}, not with {name}")

    def send(self, text: str) -> None:
        """Answer a question. If no answer comes, the conversation stays as before."""
        question = f"{self.pending}\n\n{text}" if self.pending else text
        self.conversation.exchanges.append(Exchange(question))
        if self._answer_last(self._seed(0)):
            self.pending = ""

    def regen(self) -> None:
        """Answer the last question again with another seed. If no answer comes, keep the old one."""
        self._answered()
        old = self.conversation.exchanges.pop()
        self.conversation.exchanges.append(Exchange(old.user))
        done = False
        try:
            done = self._answer_last(self._seed(old.seed + 1))
        finally:
            if not done:
                self.conversation.exchanges.append(old)

    def go_on(self) -> None:
        """Go on with the last answer where it was cut. If nothing comes, it stays as it is."""
        old = self._answered()
        if old.finish_reason not in _CUT or old.reasoning_cut:
            where = "inside its reasoning" if old.reasoning_cut else "by itself"
            raise InputError(f"the last answer ended {where}", "/regen answers again")
        exchange = self.conversation.exchanges[-1]
        prompt = self.model.prompt(self.conversation.messages(), goes_on=True)
        # with the seed of its beginning it goes on as if it had not been cut
        more = self._stream(prompt, self._options(exchange.seed))
        tokens = (*old.tokens, *more.tokens) if old.tokens else ()
        exchange.answer = replace_fields(
            more, text=old.text + more.text, tokens=tokens, reasoning=old.reasoning
        )
        self._conclude(exchange.answer)

    def _answered(self) -> Result:
        exchanges = self.conversation.exchanges
        if not exchanges or exchanges[-1].answer is None:
            raise InputError("nothing was answered yet", "ask something first")
        return exchanges[-1].answer

    def _seed(self, fallback: int) -> int:
        """Return the user's fixed seed, or `fallback` if that is larger; without a fixed seed, a random one."""
        fixed = self.settings.seed
        return chance_seed() if fixed is None else max(fixed, fallback) & 0xFFFFFFFF

    def _answer_last(self, seed: int) -> bool:
        """Answer the newest question. If no answer comes, remove the question and return False."""
        exchange = self.conversation.exchanges[-1]
        try:
            prompt, dropped = fit(self.conversation, self._prompt, self.model.n_ctx)
            if dropped:
                gone = counted(dropped, "oldest exchange")
                self.screen.note(f"the context was full; dropped the {gone}")
            exchange.seed = seed
            exchange.answer = self._stream(prompt, self._options(seed))
            exchange.seed = exchange.answer.speculation.get("seed", seed)
        finally:
            if exchange.answer is None:
                self.conversation.exchanges.pop()
        self._conclude(exchange.answer)
        if exchange.answer.finish_reason == "cancelled" and not _has_text(exchange.answer):
            self.conversation.exchanges.pop()
            return False
        return True

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        self.model.budget = budget = self.settings.reasoning_budget
        self.model.thinking = self.settings.reasoning != UNASKED and budget != 0
        return self.model.prompt(messages)

    def _options(self, seed: int) -> AnswerOptions:
        settings = self.settings
        return AnswerOptions(
            settings.sampling(seed),
            Speculation(True, settings.rule, settings.length, settings.draft_max),
            settings.max_tokens,
            progress=self.screen.progress,
            reasoning=self.model.limit,
        )

    def _stream(self, prompt: list[int], options: AnswerOptions) -> Result:
        """Show an answer as it streams in. After an error, keep what came before it."""
        shown: list[Piece] = []
        pieces, settings = self.model.answer(prompt, options), self.settings
        tokens = self.model.piece if settings.tokens else None
        reply = self.screen.replying(
            wrap=settings.wrap, reasoning=settings.reasoning != HIDE, tokens=tokens
        )
        try:
            with reply as write, self.guard(self._stop) as signals, closing(pieces):
                for piece in pieces:
                    shown.append(piece)
                    write(piece)
        except PyspecError as error:
            if not shown:
                raise
            self.fail(error)
        if SIGTERM in (signals or ()):
            self.leaving, self.exit_code = True, 128 + SIGTERM
        return unended(result_of(shown, self.model.stats), self.model.piece)

    def _stop(self) -> None:
        self.interrupted_at = monotonic()
        self.model.cancel()

    def _conclude(self, answer: Result) -> None:
        """Say why an answer was cut and how fast it came, and write the chat to its log."""
        most, longer = self.settings.max_tokens or 0, "/set max_tokens all has no limit"
        note = why_cut(answer, most, self.model.n_ctx, longer, FULL_HINT)
        if answer.finish_reason == "cancelled":
            kept = "its text is kept" if _has_text(answer) else "there was no text yet"
            note = f"stopped; {kept}"
        if note:
            self.screen.note(f"({note})")
        if self.settings.stats != SILENT:
            self.screen.stats(answer, counts=self.settings.stats == FULL)
        self.keep()


def _has_text(answer: Result) -> bool:
    return bool(answer.tokens or answer.text or answer.reasoning)
