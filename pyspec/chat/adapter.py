"""The chat's model over `SpeculativeLlama`: one context for all turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

from pyspec.chat.conversation import AnswerStats, Ask, Progress
from pyspec.chat.files import LlamaSpeaker
from pyspec.errors import PyspecError
from pyspec.llama import Piece, Speculation, SpeculativeLlama, stream_text
from pyspec.template import PLAIN, ChatTemplate, Message

Opener = Callable[[str, str], SpeculativeLlama]


class LlamaChat(LlamaSpeaker):
    """A `ChatModel` that opens its `SpeculativeLlama` with `opener(draft, companion)`.

    Opening again, for `use`, has the context read anew; the conversation is the caller's.
    """

    def __init__(self, opener: Opener, draft: str = "auto", companion: str = "none") -> None:
        self._opener = opener
        self._open(draft, companion)
        self._stats: AnswerStats | None = None
        self._cancelled = False

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds."""
        return int(self._llm.n_ctx())

    @property
    def draft(self) -> str:
        """Name of what drafts, or none."""
        return self._names()[0]

    @property
    def companion(self) -> str:
        """Name of the companion, or none."""
        return self._names()[1]

    def _names(self) -> tuple[str, str]:
        assembly = self._llm._assembly  # noqa: SLF001 - results alone name them in public, and only after an answer
        return ("none", "none") if assembly is None else (assembly.draft, assembly.companion)

    @property
    def name(self) -> str:
        """Name of the target's file."""
        return Path(self._llm.model_path).stem

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages, open for the next answer."""
        return self._template.prompt(messages)

    def cancel(self) -> None:
        """End the answer in flight; safe from any thread."""
        self._cancelled = True  # the engine forgets its own flag where a new call of `steps` begins
        self._llm.cancel()

    def stats(self) -> AnswerStats | None:
        """What the last answer did; None where it did nothing."""
        return self._stats

    def describe(self) -> list[tuple[str, str]]:
        """Names and values that say what is loaded."""
        return [
            ("target", self._llm.model_path),
            ("draft", self.draft),
            ("companion", self.companion),
            ("context", f"{self.n_ctx} tokens"),
            ("template", self._template.format.name),
        ]

    def close(self) -> None:
        """Free the models."""
        self._llm.close()

    def use(self, *, draft: str | None = None, companion: str | None = None) -> None:
        """Open again with another draft or companion; on an error, with the former ones."""
        words = (draft or self._words[0], companion or self._words[1])
        self._llm.close()  # first: two targets need not fit into memory
        try:
            self._open(*words)
        except (PyspecError, KeyboardInterrupt):
            self._open(*self._words)
            raise

    def _open(self, draft: str, companion: str) -> None:
        self._llm = self._opener(draft, companion)
        self._template = ChatTemplate.of(self._llm)
        self._words = (draft, companion)

    def answer(self, ask: Ask, progress: Progress | None = None) -> Generator[Piece, None, None]:
        """Answer; the last piece has a finish_reason."""
        self._cancelled, self._stats = False, None
        before = self._llm.last_speculation

        def reading(done: int, total: int) -> None:
            if self._cancelled:  # before the engine had begun
                self._llm.cancel()
            if progress is not None:
                progress(done, total)

        pieces = stream_text(
            self._llm,
            ask.prompt,
            ask.sampling,
            max_tokens=ask.max_tokens,
            stop=("\nUser:",) if self._template.format is PLAIN else (),
            speculation=Speculation(
                verification=ask.rule, length=ask.length, draft_max=ask.draft_max
            ),
            progress=reading,
        )
        try:
            with closing(pieces):
                for piece in pieces:
                    ended = "cancelled" if self._cancelled else piece.finish_reason
                    yield Piece(piece.text, piece.tokens, ended)
                    if ended:
                        return
        finally:
            if self._llm.last_speculation is not before:  # else nothing was decoded
                self._stats = AnswerStats(self._llm.last_speculation, self._llm.last_timings)
