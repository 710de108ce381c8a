"""Whether the text is the same with any draft, on a real model; where two texts differ, how close to a tie it was.

MODEL is a file or a name, QUESTIONS a file in Spec-Bench's format, of which --prompts first turns are used, evenly over kinds.
Each is answered at temperature --temp without drafts, then with each of --drafts at each of --lengths, alone and --parallel at
once in a batch. With one seed noise is coupled, so answers are equal except where rounding decides: rows computed together round
differently from rows computed one by one, and may change what truncation leaves. Where an answer differs, `gap` is how far the
target's choice was ahead of the next one there, in nats with noise, or `alone` if truncation left no other. If the answer was
generated alone, both answers are recomputed with the same number of rows in each decode as in their rounds. If both choices come
again, rounding explains the difference; anything else is a fault. For a batch's rounds the neighbours are `not known`. Its tokens
are not known either: where a token begins with the text of the one that plain decoding chose, the place is one too late.

With --out the results are stored after each draft and length, and a run with the same arguments and code resumes after them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isinf
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from common import Made, arguments, keep, made_by, page_of
from measure.contenders import Ours
from measure.equal import choices, judge
from measure.records import TimedAnswer
from measure.report import table
from measure.tasks import Options, parse_mode
from rows import open_pair

from pyspec import SpeculativeLlama
from pyspec.batch import Batch, Record, Settings
from pyspec.profiling.logits import rows_after
from pyspec.profiling.questions import load_questions, select
from pyspec.text.template import ChatTemplate
from pyspec.text.tokens import common_prefix

HEAD = (
    "draft",
    "longest draft",
    "answers",
    "equal",
    "rounding made again",
    "others",
    "not known",
    "median gap",
    "largest gap",
)
OPTIONS = {
    "drafts": "none,lookup,smollm2-companion,smollm2-eagle3", "lengths": "1,2,3,4,5,6,7,8", "parallel": 8, "prompts": 200,
    "tokens": 32, "temp": 0.8, "threads": 1, "gpu_layers": 0, "out": None,
}  # fmt: skip


class Parting(msgspec.Struct):
    """One answer that differs from plain decoding's: the token's place, nats with noise, whether rounding explains it.

    gap: None where truncation left one token alone. again: None of a batch.
    """

    draft: str
    length: int
    question: str
    place: int
    gap: float | None
    again: bool | None

    def __str__(self) -> str:
        """The line on the page."""
        said = {None: "not known", True: "made again", False: "NOT made again"}[self.again]
        where = f"{self.draft}, {self.length}: question {self.question}, token {self.place + 1}"
        return f"{where}; {_shown(inf if self.gap is None else self.gap)}, {said}"


def _shown(gap: float) -> str:
    return "alone" if isinf(gap) else f"{gap:.4f} nats"


class SameText(Made):
    """Results for one file. asked: number of prompts; ways: each draft with its lengths."""

    target: str
    asked: int
    ways: list[tuple[str, int]]
    partings: list[Parting]

    def page(self) -> str:
        """The title, a description, the table and every difference."""
        made = f"{self.made} Target {self.target}."
        lines = "\n".join(f"- {parting}" for parting in self.partings)
        rows = [self._row(*way) for way in self.ways]
        return page_of("One text whatever drafts", __doc__, made, table(HEAD, rows), lines)

    def _row(self, draft: str, length: int) -> list[str]:
        mine = [one for one in self.partings if (one.draft, one.length) == (draft, length)]
        again = [sum(one.again is known for one in mine) for known in (True, False, None)]
        gaps = [inf if one.gap is None else one.gap for one in mine]
        shown = [_shown(of(gaps)) for of in (median, max)] if gaps else ["-", "-"]
        counts = (length, self.asked, self.asked - len(mine), *again)
        return [draft, *map(str, counts), *shown]


def answers(
    llm: SpeculativeLlama, mode: str, prompts: Mapping[str, list[int]], options: Any
) -> dict[str, TimedAnswer]:
    """Answer each prompt in a mode; by question."""
    how = Options(max_tokens=options.tokens, temperature=options.temp)
    one, found = Ours(llm, parse_mode(mode), options.temp), {}
    for name, prompt in prompts.items():
        one.forget()  # a beginning kept from another prompt was read with other rows in its batch
        found[name] = one.answer(prompt, options.tokens, how)
    return found


Way = tuple[str, int]
"""A draft, alone or in a batch, and its longest draft."""


def compare(
    options: Any, known: Collection[Way] = ()
) -> Iterator[tuple[int, dict[Way, list[Parting]]]]:
    """For each draft and length not in `known`: the number of prompts, and the differing answers, alone and in a batch."""
    with open_pair(options.model, "none", options.threads, options.gpu_layers) as llm:
        template = ChatTemplate.of(llm)
        asked = select(load_questions(Path(options.questions)))
        prompts = {str(q.question_id): q.prompt(template) for q in asked}
        short = [name for name, ids in prompts.items() if len(ids) + options.tokens < 2000]
        prompts = {name: prompts[name] for name in short[: options.prompts]}
        plain = answers(llm, "plain", prompts, options)
    for draft in options.drafts.split(","):
        for length in [0] if draft == "none" else map(int, options.lengths.split(",")):
            one, together = (draft, length), (f"{draft}, {options.parallel} at once", length)
            if together in known:
                continue
            with open_pair(options.model, draft, options.threads, options.gpu_layers) as llm:
                found = {one: alone(llm, one, prompts, plain, options)} if length else {}
                texts = at_once(options, draft, length, prompts)
                found[together] = beside(llm, together, prompts, plain, texts, options)
            yield len(prompts), found


def alone(
    llm: SpeculativeLlama,
    way: Way,
    prompts: Mapping[str, list[int]],
    plain: Mapping[str, TimedAnswer],
    options: Any,
) -> list[Parting]:
    """Differences of answers that are generated one by one."""
    found, parted = answers(llm, f"fixed:{way[1]}+strict", prompts, options), []
    for name, prompt in prompts.items():
        one, other = plain[name], found[name]
        if one.tokens != other.tokens:
            place = common_prefix(one.tokens, other.tokens)
            how = Options(temperature=options.temp).sampling(prompt)
            again = all(
                choices(llm, [(prompt, each)], how)[place:][:1] == each.tokens[place:][:1]
                for each in (one, other)
            )
            gap = lead(llm, prompt, one.tokens[:place], options.temp)
            parted.append(Parting(*way, name, place, gap, again))
    return parted


def at_once(
    options: Any, draft: str, length: int, prompts: Mapping[str, list[int]]
) -> dict[str, str]:
    """Each prompt's text, generated in a batch."""
    how, records = Options(temperature=options.temp), []
    for name, prompt in prompts.items():
        seed = how.sampling(prompt).seed
        records.append(Record(id=name, tokens=prompt, seed=seed, temperature=options.temp))
    with Batch(
        options.model, draft=draft, length=f"fixed:{length}" if length else "auto", n_ctx=2048,
        parallel=options.parallel, settings=Settings(max_tokens=options.tokens, raw=True),
        n_threads=options.threads, n_threads_batch=options.threads, n_gpu_layers=options.gpu_layers,
    ) as batch:  # fmt: skip
        return {result.id: result.text for result in batch.run(records)}


def beside(
    llm: SpeculativeLlama,
    way: Way,
    prompts: Mapping[str, list[int]],
    plain: Mapping[str, TimedAnswer],
    texts: Mapping[str, str],
    options: Any,
) -> list[Parting]:
    """Differences of a batch's texts: each at the first token of the plain answer that the text does not continue with."""

    def said(ids: Sequence[int]) -> bytes:
        return bytes(llm.detokenize(list(ids)))

    parted = []
    for name, prompt in prompts.items():
        tokens, text = plain[name].tokens, texts[name].encode()
        if said(tokens).decode(errors="ignore").encode() != text:
            same = [n for n in range(len(tokens)) if text.startswith(said(tokens[:n]))]
            gap = lead(llm, prompt, tokens[: same[-1]], options.temp)
            parted.append(Parting(*way, name, same[-1], gap, None))
    return parted


def lead(
    llm: SpeculativeLlama, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> float | None:
    """How far the target's choice after an answer's tokens is ahead of the next one, nats; None if no other is left."""
    text = [*prompt, *answer]
    row = next(rows_after(llm, text, [0])).copy()
    with judge(llm, Options(temperature=temperature).sampling(prompt)) as best:
        gap = best(row, len(text)).gap(temperature)
    return None if isinf(gap) else gap


def main(words: Sequence[str] | None = None) -> None:
    """Compare, and print the page; with --out, also store it."""
    options = arguments(__doc__, words, "model", "questions", **OPTIONS)
    made = made_by("same_text", words)
    found = SameText(*made, Path(options.model).stem, 0, [], [])
    path = options.out and options.out / "same_text.json"
    if path and path.exists():
        kept = msgspec.json.decode(path.read_bytes(), type=SameText)
        same = (kept.command, kept.machine, kept.commit) == made
        found = kept if same else found
    for asked, ways in compare(options, found.ways):
        found.asked = asked
        for way, partings in ways.items():
            found.ways.append(way)
            found.partings += partings
            print(*way, *partings, sep="\n  ", file=sys.stderr, flush=True)
        if path:
            keep(found, path)
    print(found.page())


if __name__ == "__main__":
    main()
