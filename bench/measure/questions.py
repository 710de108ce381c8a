"""The questions for measurements, in Spec-Bench's JSONL format, one object per line; a small set ships.

Fields: `question_id`, `category`, `turns` (the user's messages, in order) and `reference` (good answers, one per turn; often
absent).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pyspec.errors import InputError, OptionError
from pyspec.machine.files import read_named
from pyspec.text.messages import Message
from pyspec.text.template import ChatTemplate

T = TypeVar("T")
K = TypeVar("K")
_MAX_BYTES = 64 << 20
_HINT = 'each line is an object like {"question_id": 1, "category": "qa", "turns": ["..."]}'

Report = Callable[[int, int, str], None]
"""Called before each step with how many are done, the total, and what comes next."""


class Question(msgspec.Struct):
    """One conversation; `reference` has one entry per turn, or none at all."""

    question_id: int | str
    category: str
    turns: list[str]
    reference: list[Any] = []

    def prompt(self, template: ChatTemplate, answers: Sequence[Sequence[int]] = ()) -> list[int]:
        """Tokens of the conversation, up to the turn that follows these answers."""
        messages: list[Message] = []
        for text, tokens in zip(self.turns, answers):
            messages.append(Message(role="user", content=text))
            messages.append(Message(role="assistant", tokens=tokens))
        last = Message(role="user", content=self.turns[len(answers)])
        return template.prompt([*messages, last])


def load_questions(path: Path | None = None) -> list[Question]:
    """Load the questions of a file, or the shipped set.

    Raises InputError with the line number where a line is no question.
    """
    shipped = Path(__file__).with_suffix(".jsonl")
    try:
        data = read_named(path, _MAX_BYTES) if path else shipped.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot read {path}: {reason}") from None
    return parse_questions(data.splitlines(), str(path or "the shipped questions"))


def parse_questions(lines: Iterable[bytes], name: str) -> list[Question]:
    """Parse the lines of a questions file. Raises InputError."""
    found: dict[int | str, Question] = {}
    for number, question in json_lines(lines, Question, name, _HINT):
        if not question.turns or question.question_id in found:
            what = "appears twice" if question.turns else "has no turns"
            raise InputError(f"{name}, line {number}: question {question.question_id} {what}")
        found[question.question_id] = question
    if not found:
        raise InputError(f"{name} contains no question", _HINT)
    return list(found.values())


def json_lines(
    lines: Iterable[bytes], kind: type[T], name: str, hint: str = ""
) -> Iterator[tuple[int, T]]:
    """Decode JSON lines, with their numbers; skips empty ones. Raises InputError with the line number of one that is invalid."""
    decode = msgspec.json.Decoder(kind).decode
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InputError(f"{name}, line {number}: {error}", hint) from None


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by key; keys and items keep their order."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def select(
    questions: Sequence[Question], limit: int | None = None, categories: Sequence[str] = ()
) -> list[Question]:
    """At most `limit` questions per category, of the named `categories` (all if none).

    Categories are interleaved, so a run that is cut short has seen all of them. Raises OptionError for an unknown category.
    """
    by_category = grouped(questions, lambda question: question.category)
    for name in categories:
        if name not in by_category:
            known = ", ".join(by_category)
            raise OptionError(f"no question has the category {name!r}", f"there are: {known}")
    wanted = categories or by_category
    kept = [group[:limit] for name, group in by_category.items() if name in wanted]
    return [question for row in zip_longest(*kept) for question in row if question is not None]


def first_turns(path: Path | str | None) -> list[str]:
    """The first turns of a file's questions, or of the shipped ones; of all kinds in turn, so that a few are not of one kind."""
    return [question.turns[0] for question in select(load_questions(Path(path) if path else None))]
