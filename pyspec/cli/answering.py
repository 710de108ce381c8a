"""Shows the answer to one prompt, keeps it, and reports on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspec.chat import HIDE
from pyspec.chat.dialogue import Conversation, unended, why_cut
from pyspec.cli.command import option, tell
from pyspec.cli.options import DialogueOptions, ShownOptions
from pyspec.cli.streams import interruptible
from pyspec.errors import InputError, PyspecError
from pyspec.screen.words import speed_sentence, stats_line

if TYPE_CHECKING:
    from pyspec.chat.conversation import LlamaChat
    from pyspec.text.parts import Piece
    from pyspec.text.result import Result


@dataclass(frozen=True)
class OutputOptions(ShownOptions):
    """What to print beside the text or instead of it."""

    # fmt: off
    tokens: bool = option("Output", "--tokens", is_flag=True, help="Colour each token by its source.")
    as_json: bool = option("Output", "--json", is_flag=True, help="One JSON object instead of text.")
    # fmt: on


def conversation_of(
    model: LlamaChat, dialogue: DialogueOptions, raw: bool
) -> tuple[Conversation, Path | None]:
    """Return the conversation, and the file of one that goes on. Raises InputError if there is nothing to continue."""
    if not dialogue.going_on:
        return Conversation(dialogue.system), None
    if raw:
        raise InputError(
            "without a chat template there is no conversation to continue",
            "leave out --continue or --raw",
        )
    from pyspec.chat.files import held_with, load, newest, restore  # noqa: PLC0415 - only to go on

    path = newest()
    saved = load(path)
    conversation, same = restore(saved, model)
    if not same and (note := held_with(saved, model)):
        tell(note, err=True)
    if dialogue.system is not None:
        conversation.system = dialogue.system
    return conversation, path


def keep_chat(
    path: Path | None,
    dialogue: DialogueOptions,
    conversation: Conversation,
    model: LlamaChat,
    answer: Result,
    seed: int,
) -> None:
    """Add an answer that is not empty to its conversation, and write that to its file, or a new one to the log.

    If writing fails, it says so and goes on.
    """
    from pyspec.chat.files import new_path, save  # noqa: PLC0415 - after the answer

    if not (answer.text or answer.reasoning):
        return
    last = conversation.exchanges[-1]
    last.answer = unended(answer, model.piece)
    last.seed = answer.speculation.get("seed", seed)
    path = path or (new_path() if dialogue.log else None)
    if path is None:
        return
    try:
        save(path, conversation, {}, model.target())
    except PyspecError as error:
        tell(f"the answer is not logged: {error}", err=True)


@contextmanager
def answer_writer(
    screen: Any, output: OutputOptions, piece: Callable[[int], bytes]
) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that shows a piece of the answer. A pipe gets plain text; --json prints everything at the end."""
    shown = output.reasoning != HIDE
    if output.as_json:
        yield lambda _: None
    elif output.tokens:
        from pyspec.screen.token_view import TokenPaint, has_colour  # noqa: PLC0415 - seldom needed

        paint = TokenPaint(piece, colour=has_colour(screen.out))

        def painted(part: Piece) -> None:
            paint.take(part.tokens)
            write(part.reasoning if shown else "", part.text)

        with screen.replying(paint=paint) as write:
            yield painted
        screen.out.file.write(paint.finish())
    elif screen.out.is_terminal:
        with screen.replying(reasoning=shown) as write:
            yield lambda part: write(part.reasoning, part.text)
    else:
        yield lambda part: _write(part.text)
        _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def shown_answer(
    answer: Iterable[Piece],
    cancel: Callable[[], None],
    begun: Callable[[], None],
    write: Callable[[Piece], None],
) -> tuple[list[Piece], list[int]]:
    """Show an answer as it comes; returns its pieces, and the signals that came. begun: called at the first piece."""
    pieces: list[Piece] = []
    with interruptible(cancel) as signals:
        for piece in answer:
            if not pieces:
                begun()
            pieces.append(piece)
            if piece.text or piece.reasoning:
                write(piece)
    return pieces, signals


def say_answer(
    llm: Any, answer: Result, output: OutputOptions, max_tokens: int, screen: Any
) -> None:
    """Report on an answer that was shown. llm: the model that gave it."""
    if output.as_json:
        tell(json.dumps(_report(llm, answer, output.tokens), ensure_ascii=False))
        return
    if output.tokens:
        from pyspec.screen.token_view import print_legend  # noqa: PLC0415 - as above

        print_legend(screen.out, answer.tokens, llm.piece)
    longer = f"-n {2 * max_tokens} allows more, -n -1 has no limit"
    wider = f"-c {2 * llm.n_ctx()} has more room"
    if answer.finish_reason == "cancelled" and not answer.tokens:
        screen.note("stopped before the answer began")
    if cut := why_cut(answer, max_tokens, llm.n_ctx(), longer, wider):
        screen.note(cut)
    if output.stats is False or not answer.speculation.get("rounds"):
        return
    screen.note(speed_sentence(answer.speculation, answer.rate))
    if output.stats:
        screen.note(stats_line(answer.speculation, answer.rate))


def _report(llm: Any, answer: Result, with_tokens: bool) -> dict[str, Any]:
    beside = ("timings", "prompt_tokens")
    block = {name: value for name, value in answer.speculation.items() if name not in beside}
    from msgspec.structs import asdict  # noqa: PLC0415 - seldom needed

    report: dict[str, Any] = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": asdict(answer.usage),
        "speculation": block,
        "timings": llm.last_timings,
    }
    if answer.reasoning:
        report["reasoning"] = answer.reasoning
    if answer.reasoning_cut:
        report["reasoning_cut"] = True
    if with_tokens:
        report["tokens"] = [
            {"id": token.id, **token.described(llm.piece(token.id).decode("utf-8", "replace"))}
            for token in answer.tokens
        ]
    return report
