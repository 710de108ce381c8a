"""The state of a chat, and the actions behind commands and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from msgspec.structs import replace as replace_fields

from pyspec.chat import HIDE, UNASKED, files
from pyspec.chat.conversation import LlamaChat
from pyspec.chat.dialogue import FULL_HINT, Conversation, Exchange, fit, unended, why_cut
from pyspec.chat.settings import BRIEF, SILENT, ChatSettings, values
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.errors import InputError, PyspecError
from pyspec.sampling.options import chance_seed
from pyspec.sampling.verification import Verification
from pyspec.screen.display import Screen
from pyspec.screen.words import counted, speed_sentence, stats_line
from pyspec.text.answer import ReasoningLimit
from pyspec.text.messages import Message
from pyspec.text.parts import Piece, Result, result_of

# -- the chat ----------------------------------------------------------------------------------------------------------

Guard = Callable[[Callable[[], None]], AbstractContextManager[list[int]]]
"""Makes Ctrl-C and SIGTERM call a function in the body, and lists the signals; a second one raises KeyboardInterrupt."""

_CUT = ("length", "context", "cancelled")  # ends of answers that can go on

TERMINATED = 143
_SIGTERM = 15


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
    file: Path | None = None  # last saved to or loaded from
    confirm: Callable[[str], bool] | None = None  # asks the user; None if no user is present
    kept: bool = False  # whether the log was written
    set_by_user: set[str] = field(default_factory=set)  # no model's suggestions change these
    _suggested: AbstractSet[str] = frozenset()

    def suggest(self) -> None:
        """Sample as the model suggests, except where the user has set something else; the former model's suggestions end."""
        found = self.model.suggested
        new = {name: v for name, v in found.values.items() if name not in self.set_by_user}
        old = {name: getattr(ChatSettings, name) for name in self._suggested - self.set_by_user}
        self.settings, self._suggested = replace(self.settings, **{**old, **new}), new.keys()
        if sentence := found.sentence(self.set_by_user):
            self.screen.note(sentence)

    def fail(self, error: PyspecError) -> None:
        """Print an error and keep its exit code."""
        self.screen.error(str(error))
        self.exit_code = error.exit_code

    def keep(self) -> None:
        """Write the chat to its log. A failure is reported once and turns the log off."""
        if self.log is None or not self.conversation.exchanges:
            return
        try:
            files.save(self.log, self.conversation, values(self.settings), self.model.target())
            self.kept = True
        except PyspecError as error:
            self.log = None
            self.screen.note(f"this chat is not saved: {error}")

    def send(self, text: str) -> None:
        """Answer a question. If no answer comes, the conversation stays as before."""
        question = f"{self.pending}\n\n{text}" if self.pending else text
        self.conversation.exchanges.append(Exchange(question))
        if self._answer_last(self._seed(0)):
            self.pending = ""

    def regen(self) -> None:
        """Answer the last question again with another seed. If no answer comes, keep the old one."""
        self._answered("nothing was answered yet")
        if self.settings.temperature == 0:
            self.screen.note(
                "temperature is 0, so the answer stays the same; /set temp 0.8 varies it"
            )
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
        old = self._answered("nothing was answered yet")
        if old.finish_reason not in _CUT or old.reasoning_cut:
            where = "inside its reasoning" if old.reasoning_cut else "by itself"
            raise InputError(f"the last answer ended {where}", "/regen answers again")
        exchange = self.conversation.exchanges[-1]
        prompt = self.model.prompt(self.conversation.messages(), goes_on=True)
        options = self._options(exchange.seed, self.settings.rule)
        # with the seed of its beginning it goes on as if it had not been cut
        options = replace(options, sampling=replace(options.sampling, unseeded=False))
        more = self._stream(prompt, options)
        tokens = (*old.tokens, *more.tokens) if old.tokens else ()
        exchange.answer = replace_fields(
            more, text=old.text + more.text, tokens=tokens, reasoning=old.reasoning
        )
        self._explain(exchange.answer)
        self._show_stats(exchange.answer)
        self.keep()

    def undo(self) -> Exchange:
        if not self.conversation.exchanges:
            raise InputError("there is nothing to undo", "ask something first")
        return self.conversation.exchanges.pop()

    def _answered(self, refusal: str) -> Result:
        if (answer := self.conversation.last_answer) is None:
            raise InputError(refusal, "ask something first")
        return answer

    def _seed(self, fallback: int) -> int:
        """Return the user's fixed seed, or `fallback` if that is larger; without a fixed seed, a random one."""
        fixed = self.settings.seed
        if fixed is None:
            return chance_seed()
        return max(fixed, fallback) & 0xFFFFFFFF

    def _answer_last(self, seed: int) -> bool:
        """Answer the newest question. If no answer comes, remove the question and return False."""
        exchange = self.conversation.exchanges[-1]
        try:
            prompt, dropped = fit(
                self.conversation, self._prompt, self.model.n_ctx, trim=self.settings.trim
            )
            if dropped:
                gone = counted(dropped, "oldest exchange")
                self.screen.note(f"the context was full; dropped the {gone}")
            exchange.seed = seed
            exchange.answer = self._stream(prompt, self._options(seed, self.settings.rule))
            exchange.seed = exchange.answer.speculation.get("seed", seed)
        finally:
            if exchange.answer is None:
                self.conversation.exchanges.pop()
        self._explain(exchange.answer)
        self._show_stats(exchange.answer)
        self.keep()
        if exchange.answer.finish_reason == "cancelled" and not _has_text(exchange.answer):
            self.conversation.exchanges.pop()
            return False
        return True

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        budget = self.settings.reasoning_budget
        self.model.budget = budget
        self.model.thinking = self.settings.reasoning != UNASKED and budget != 0
        return self.model.prompt(messages)

    def _options(self, seed: int, rule: Verification | None) -> AnswerOptions:
        settings = self.settings
        return AnswerOptions(
            settings.sampling(seed),
            Speculation(verification=rule, length=settings.length, draft_max=settings.draft_max),
            settings.max_tokens,
            progress=self.screen.progress,
            reasoning=None
            if settings.reasoning_budget < 0
            else ReasoningLimit(settings.reasoning_budget),
        )

    def _stream(self, prompt: list[int], options: AnswerOptions) -> Result:
        """Show an answer as it streams in. After an error, keep what came before it."""
        shown: list[Piece] = []
        pieces = self.model.answer(prompt, options)
        tokens = self.model.piece if self.settings.tokens else None
        try:
            with (
                self.screen.replying(
                    wrap=self.settings.wrap,
                    reasoning=self.settings.reasoning != HIDE,
                    tokens=tokens,
                ) as write,
                self.guard(self._stop) as signals,
                closing(pieces),
            ):
                for piece in pieces:
                    shown.append(piece)
                    write(piece)
        except PyspecError as error:
            if not shown:
                raise
            self.fail(error)
        if _SIGTERM in (signals or ()):
            self.leaving, self.exit_code = True, TERMINATED
        return unended(result_of(shown, self.model.stats), self.model.piece)

    def _stop(self) -> None:
        self.interrupted_at = monotonic()
        self.model.cancel()

    def _explain(self, answer: Result) -> None:
        most, longer = self.settings.max_tokens or 0, "/set max_tokens all has no limit"
        note = why_cut(answer, most, self.model.n_ctx, longer, FULL_HINT)
        if answer.finish_reason == "cancelled":
            kept = "its text is kept" if _has_text(answer) else "there was no text yet"
            note = f"stopped; {kept}"
        if note:
            self.screen.note(f"({note})")

    def _show_stats(self, answer: Result) -> None:
        how, block = self.settings.stats, answer.speculation
        if how == SILENT or not block.get("rounds"):
            return
        self.screen.note(speed_sentence(block, answer.rate))
        if how != BRIEF:
            self.screen.note(stats_line(block, answer.rate))


def _has_text(answer: Result) -> bool:
    return bool(answer.tokens or answer.text or answer.reasoning)
