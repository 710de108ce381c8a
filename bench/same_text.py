"""Whether a text stays the same whatever drafts, on a real model: where two part, how near a tie it was.

MODEL is a file or a name, QUESTIONS a file in Spec-Bench's format, of which each --every-th question's first turn is asked; it is
answered at temperature --temp without drafts, then by each of --drafts at each of --lengths. With one seed noise is coupled, so
answers are equal but where rounding decides: rows that are computed together round otherwise than rows computed one by one.
Where an answer parts, `gap` is how far the target's choice was ahead of the next one there, in nats with noise; `again` says
whether both choices come again where both answers are decoded anew with as many rows in each decode as their rounds had: then
rounding made them. Anything else is a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from common import arguments, keep, write_one

from pyspec import SpeculativeLlama
from pyspec.measure.contenders import Ours
from pyspec.measure.costs import rows_after
from pyspec.measure.equal import choices, judge
from pyspec.measure.records import TimedAnswer, commit, machine, published
from pyspec.measure.report import code_of, table
from pyspec.measure.tasks import Options, load_questions, parse_mode, select
from pyspec.text.template import ChatTemplate
from pyspec.tokens import common_prefix

HEAD = (
    "draft",
    "longest draft",
    "answers",
    "equal",
    "rounding made again",
    "others",
    "median gap",
    "largest gap",
)
OPTIONS = {
    "drafts": "lookup,smollm2-companion,lookup+smollm2-eagle3", "lengths": "1,4,8", "every": 6, "tokens": 32,
    "temp": 0.8, "threads": 1, "out": None,
}  # fmt: skip


class Parting(msgspec.Struct):
    """One answer that leaves plain decoding's: the token's place, nats with noise, whether rounding makes both again."""

    draft: str
    length: int
    question: str
    place: int
    gap: float
    again: bool

    def __str__(self) -> str:
        """As a line of the page."""
        said = "made again" if self.again else "NOT made again"
        where = f"{self.draft}, {self.length}: question {self.question}, token {self.place + 1}"
        return f"{where}; {self.gap:.4f} nats, {said}"


class SameText(msgspec.Struct):
    """What was found of one file; asked: prompts; ways: each draft with its lengths."""

    command: str
    machine: str
    commit: str
    target: str
    asked: int
    ways: list[tuple[str, int]]
    partings: list[Parting]

    def page(self) -> str:
        """Title, what it is, the table and every parting."""
        made = f"Made by `{self.command}`{code_of(self.commit)} on {self.machine}. Target {self.target}."
        lines = "\n".join(f"- {parting}" for parting in self.partings)
        rows = [self._row(*way) for way in self.ways]
        about = (__doc__ or "").strip()
        return (
            f"# One text whatever drafts\n\n{about}\n\n{made}\n\n{table(HEAD, rows)}\n\n{lines}\n"
        )

    def _row(self, draft: str, length: int) -> list[str]:
        mine = [one for one in self.partings if (one.draft, one.length) == (draft, length)]
        again, gaps = sum(one.again for one in mine), [one.gap for one in mine]
        shown = [f"{median(gaps):.4f}", f"{max(gaps):.4f}"] if gaps else ["-", "-"]
        counts = (length, self.asked, self.asked - len(mine), again, len(mine) - again)
        return [draft, *map(str, counts), *shown]


def write(folder: Path) -> None:
    """The page of what a folder keeps."""
    write_one(folder / "same_text.json", SameText)


def open_model(options: Any, draft: str) -> SpeculativeLlama:
    """The target with a draft."""
    return SpeculativeLlama(
        options.model, draft=draft, companion="none", n_ctx=2048, n_threads=options.threads,
        n_threads_batch=options.threads, verbose=False,
    )  # fmt: skip


def answers(
    llm: SpeculativeLlama, mode: str, prompts: dict[str, list[int]], options: Any
) -> dict[str, TimedAnswer]:
    """Each prompt's answer in a mode, by question."""
    how = Options(max_tokens=options.tokens, temperature=options.temp)
    one, found = Ours(llm, parse_mode(mode), options.temp), {}
    for name, prompt in prompts.items():
        one.forget()  # a prompt's beginning that was read for another one had rows beside it
        found[name] = one.answer(prompt, options.tokens, how)
    return found


def compare(options: Any) -> Iterator[tuple[str, int, dict[str, list[int]], list[Parting]]]:
    """Draft, length, what was asked, and where answers part, one way after the other."""
    with open_model(options, "none") as llm:
        template = ChatTemplate.of(llm)
        asked = select(load_questions(Path(options.questions)), every=options.every)
        prompts = {str(q.question_id): q.prompt(template) for q in asked}
        prompts = {name: ids for name, ids in prompts.items() if len(ids) + options.tokens < 2000}
        plain = answers(llm, "plain", prompts, options)
    for draft in options.drafts.split(","):
        with open_model(options, draft) as llm:
            for length in map(int, options.lengths.split(",")):
                found = answers(llm, f"fixed:{length}+strict", prompts, options)
                parted = [name for name in found if found[name].tokens != plain[name].tokens]
                yield draft, length, prompts, [
                    parting(llm, (draft, length, name), prompts[name], plain[name], found[name], options.temp)
                    for name in parted
                ]  # fmt: skip


def parting(
    llm: SpeculativeLlama,
    names: tuple[str, int, str],
    prompt: Sequence[int],
    plain: TimedAnswer,
    other: TimedAnswer,
    temperature: float,
) -> Parting:
    """Where two answers part, looked at."""
    place = common_prefix(plain.tokens, other.tokens)
    sampling = Options(temperature=temperature).sampling(prompt)
    text = [*prompt, *plain.tokens[:place]]
    row = next(rows_after(llm, text, [0])).copy()
    with judge(llm, sampling) as best:
        gap = best(row, len(text)).gap(temperature)
    again = all(
        choices(llm, [(prompt, one)], sampling)[place : place + 1] == one.tokens[place : place + 1]
        for one in (plain, other)
    )
    return Parting(*names, place, gap, again)


def main(words: Sequence[str] | None = None) -> None:
    """Count, and print the page; with --out, keep it."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    command = published("python bench/same_text.py", sys.argv[1:] if words is None else words)
    found = SameText(command, machine(), commit(), Path(options.model).stem, 0, [], [])
    for draft, length, prompts, partings in compare(options):
        found.asked = len(prompts)
        found.ways.append((draft, length))
        found.partings += partings
        print(draft, length, *partings, sep="\n  ", file=sys.stderr, flush=True)
    print(found.page())
    if options.out:
        keep(found, options.out / "same_text.json")


if __name__ == "__main__":
    main()
