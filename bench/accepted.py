"""Tokens accepted of an EAGLE-3 head: ours beside llama-server's draft-eagle3 with the same file and length, strict and greedy.

Both draft so many tokens in every round, from the second token of an answer on, and show the head the whole prompt (pyspec
shows it the end alone otherwise). The server decodes a verified batch a second time, so states and rows round otherwise there:
a text may part, and so may a draft. Where a text parts, the target's logits for both tokens are computed with 1 to 6 rows in
one batch: the margin is ours less theirs in each, and a near-tie is where its sign differs or its size is below how far
batches move it. The last line is over equal texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any
from unittest.mock import patch

from common import arguments
from parity import row

from pyspec.llama import SpeculativeLlama
from pyspec.measure.contenders import Files, Ours, open_peer
from pyspec.measure.report import table
from pyspec.measure.tasks import Options, load_questions, parse_mode
from pyspec.store.heads import States
from pyspec.store.locate import resolve
from pyspec.target import TargetLlama
from pyspec.text.template import ChatTemplate
from pyspec.tokens import common_prefix

ROWS = range(1, 7)
CONTEXT = 2048
OPTIONS = {
    "draft": "smollm2-eagle3", "server": None, "questions": None, "every": 4, "length": 3, "tokens": 96, "threads": 1
}  # fmt: skip
COUNTED = ("accepted", "verified")
HEAD = ("question", "ours", "theirs", "texts", "margins")


def main(words: list[str] | None = None) -> None:
    """Print a Markdown table, a line for each question and one for the sums over equal texts."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    model, draft = resolve(options.model), resolve(options.draft)
    shape: dict[str, Any] = {"n_ctx": CONTEXT, "n_threads": options.threads, "trust": True}
    files = Files(model, draft, CONTEXT, options.threads)
    how = Options(max_tokens=options.tokens)
    rows: list[list[str]] = []
    equal = [0] * 4
    with (
        patch.object(States, "window", CONTEXT),
        closing(open_peer(f"server-eagle3:{options.length}", files, options.server)) as peer,
        SpeculativeLlama(
            str(model), draft=str(draft), companion="none", verbose=False, **shape
        ) as llm,
        closing(TargetLlama(str(model), flash_attn=True, verbose=False, **shape)) as original,
    ):
        own = Ours(llm, parse_mode(f"fixed:{options.length}+strict+model"))
        for question in load_questions(options.questions)[:: options.every]:
            prompt = question.prompt(ChatTemplate.of(llm))
            if len(prompt) + options.tokens > CONTEXT - 64:
                continue
            own.forget()
            peer.forget()
            ours, theirs = (one.answer(prompt, options.tokens, how) for one in (own, peer))
            margins = parting(original, prompt, ours.tokens, theirs.tokens)
            kind = ("near-tie" if near(margins) else "NO near-tie") if margins else "equal"
            counts = [one.speculation.get(k, 0) for one in (ours, theirs) for k in COUNTED]
            if not margins:
                equal = [sum(pair) for pair in zip(equal, counts)]
            shown = ", ".join(f"{margin:+.3f}" for margin in margins) or "-"
            rows.append([str(question.question_id), *shares(counts), kind, shown])
    kinds = [kind for *_, kind, _ in rows]
    said = f"{kinds.count('equal')} of {len(rows)}, {kinds.count('near-tie')} near-ties"
    print(table(HEAD, [*rows, ["equal texts", *shares(equal), said, "-"]]))


def shares(counts: Sequence[int]) -> list[str]:
    """As `29 of 121`, ours and theirs."""
    return [f"{counts[i]} of {counts[i + 1]}" for i in (0, 2)]


def parting(llm: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> list[float]:
    """Our token's logit less theirs where two answers first differ, in batches of 1, 2, ... rows; nothing where neither does."""
    place = common_prefix(ours, theirs)
    if place == min(len(ours), len(theirs)):
        return []
    a, b = ours[place], theirs[place]
    rows = [row(llm, [*prompt, *theirs[:place]], together) for together in ROWS]
    return [float(logits[a] - logits[b]) for logits in rows]


def near(margins: Sequence[float]) -> bool:
    """Whether batches move the margin by as much as it is, or turn it round."""
    low, high = min(margins), max(margins)
    return not low * high > 0 or min(map(abs, margins)) < high - low


if __name__ == "__main__":
    main()
