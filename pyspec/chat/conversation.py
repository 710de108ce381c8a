"""The model that answers in a chat."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from msgspec.structs import replace as replace_fields

from pyspec.chat.files import SavedModel
from pyspec.engine.handle import Role
from pyspec.engine.kept import MIN_TOKENS, ParkedTexts, PromptCache, room_for_parked
from pyspec.engine.options import AnswerOptions
from pyspec.errors import PyspecError
from pyspec.llama.generation import stream_text
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.others import name_of
from pyspec.sampling.options import suggested_by
from pyspec.text.answer import ReasoningLimit
from pyspec.text.messages import Message
from pyspec.text.parts import Piece, common_prefix
from pyspec.text.template import ChatTemplate


def _utf8(text: str) -> str:
    """Make a file name fit for JSON. A name that is not UTF-8 no longer finds the file."""
    return text.encode("utf-8", "replace").decode()


class LlamaChat:
    """A model to chat with; one context serves all turns.

    opener: loads the model; `use` calls it again with model=, draft= or companion=. check: takes the same arguments, and raises
    if a model does not exist. prompt_cache: a file that keeps the processed context when the model is closed.
    name: the target's name. draft, companion: their names, or none. n_ctx: size of the context in tokens. stats: counts of the
    last answer, None if nothing was decoded. piece: returns the bytes of a token. thinking: False asks the template for no
    reasoning, if it supports that. called: the user's name for the target.
    cache_ram: MiB for conversations that gave way to others; None for an eighth of what is free.
    suggested: how the target suggests to sample. budget: most tokens of reasoning, -1 for any.
    One answer at a time; only `cancel` may be called from another thread.
    """

    def __init__(
        self,
        opener: Callable[..., SpeculativeLlama],
        prompt_cache: Path | None = None,
        check: Callable[..., object] = lambda **_: None,
        called: str | None = None,
        cache_ram: int | None = None,
    ) -> None:
        self._opener, self._kept_in, self._check = opener, prompt_cache, check
        self._called, self._cache_ram = called, cache_ram
        self._open({})
        self._cancelled = False
        self.thinking, self.budget = True, -1
        self._begun = time()  # a fixed date for the template, so that prompts keep their prefix

    def target(self) -> SavedModel:
        """Identify the target for a saved chat."""
        path = Path(self.llm.model_path)
        return SavedModel(_utf8(name_of(path)), _utf8(str(path.absolute())))

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

    @property
    def obeys(self) -> bool:
        """Whether `thinking = False` turns reasoning off, as far as the template shows; true if the model does not reason."""
        return bool(self.llm.speech.quiet) or not self.reasons

    @property
    def reasons(self) -> bool:
        """Whether the model marks reasoning in its answers."""
        notation = self.llm.speech.notation
        return notation.channels or notation.reasoning is not None

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
        """Reopen with another model, draft or companion; the context is read again. On an error, reopen the former ones.

        If a name does not exist, nothing changes.
        """
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
        self.piece = self.llm.piece
        self._cache = PromptCache(self.llm, self._kept_in)
        self._restored = False
        parts = self.llm.assembly.engine, {Role.TARGET: self.llm.ctx}
        self._parked = ParkedTexts(*parts, room_for_parked(self._cache_ram))
        self.stats: dict[str, Any] | None = None
        self.name, self.n_ctx = name_of(Path(self.llm.model_path)), int(self.llm.n_ctx())
        self.draft, self.companion = self.llm.assembly.draft, self.llm.assembly.companion
        self.template = ChatTemplate.of(self.llm)
        called = other.get("model", self._called) or ""
        self.suggested = suggested_by(Path(self.llm.model_path), called)
        self._other = other

    def answer(
        self, prompt: Sequence[int], options: AnswerOptions, *, chat: bool = True
    ) -> Generator[Piece, None, None]:
        """Answer a tokenized prompt; the last piece has a finish_reason.

        chat: whether the prompt was made from messages, so that the template's stop strings apply.
        """
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
            llm.hold(prompt[:n])

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
