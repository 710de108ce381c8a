"""Tokens accepted of an EAGLE-3 head: ours beside llama-server's draft-eagle3 with the same file and length, strict and greedy.

    python bench/accepted.py MODEL.gguf [--draft smollm2-eagle3] [--server PATH] [--questions FILE] [--every 4]
        [--length 3] [--tokens 96] [--threads 1]

Both draft so many tokens in every round, from the second token of an answer on. The server decodes a verified
batch a second time, so states and rows round otherwise there: a text may part, and so may a draft. Where a text parts,
the target's logits for both tokens are computed with 1 to 6 rows in one batch: the margin is ours less theirs in each,
and a near-tie is where its sign differs or its size is below how far batches move it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from common import arguments
from parity import row

from pyspec.llama import SpeculativeLlama
from pyspec.measure.modes import Options, Ours, parse_mode
from pyspec.measure.peers import Files, open_peer
from pyspec.measure.questions import load_questions
from pyspec.store import resolve
from pyspec.target import TargetLlama
from pyspec.template import ChatTemplate, Message
from pyspec.tokens import common_prefix

if TYPE_CHECKING:
    from argparse import Namespace

ROWS = range(1, 7)
OPTIONS = {
    "draft": "smollm2-eagle3", "server": None, "questions": None, "every": 4, "length": 3, "tokens": 96, "threads": 1
}  # fmt: skip


class Count(NamedTuple):
    """Drafted tokens that were verified, and those that were accepted."""

    accepted: int
    verified: int


class Parting(NamedTuple):
    """The place in the answer, both tokens, and ours less theirs in batches of 1, 2, ... rows, in logits."""

    place: int
    ours: int
    theirs: int
    margins: list[float]

    @property
    def near(self) -> bool:
        """Whether it is a near-tie."""
        return not min(self.margins) * max(self.margins) > 0 or min(map(abs, self.margins)) < (
            max(self.margins) - min(self.margins)
        )


class Answer(NamedTuple):
    """One question's counts, and where the texts part."""

    question: str
    ours: Count
    theirs: Count
    parting: Parting | None


def main(words: list[str] | None = None) -> None:
    """Print one line a question, and the sums over equal texts."""
    found = []
    for answer in compare(arguments(__doc__, words, "model", **OPTIONS)):
        found.append(answer)
        print(line(answer), flush=True)
    print(summary(found))


def compare(options: Namespace) -> Iterator[Answer]:
    """Each question's answers from both programs."""
    model, draft = resolve(options.model), resolve(options.draft)
    shape: dict[str, Any] = {
        "n_ctx": 2048, "n_threads": options.threads, "n_threads_batch": options.threads, "verbose": False
    }  # fmt: skip
    peer = open_peer(f"server-eagle3:{options.length}", Files(model, draft, 2048, options.threads), options.server)  # fmt: skip
    ours = SpeculativeLlama(str(model), draft=str(draft), companion="none", trust=True, **shape)
    original = TargetLlama(str(model), trust=True, flash_attn=True, **shape)
    with closing(peer), ours, closing(original):
        template = ChatTemplate.of(ours)
        mode = Ours(ours, parse_mode(f"fixed:{options.length}+strict+model"))
        for question in load_questions(options.questions)[:: options.every]:
            prompt = template.prompt([Message(role="user", content=question.turns[0])])
            if len(prompt) + options.tokens > shape["n_ctx"] - 64:
                continue
            peer.forget()
            theirs = peer.answer(prompt, options.tokens, Options(max_tokens=options.tokens))
            mine, count = answer(mode, prompt, options)
            counted = theirs.speculation or {}
            yield Answer(
                str(question.question_id),
                count,
                Count(counted.get("accepted", 0), counted.get("verified", 0)),
                parting(original, prompt, mine, theirs.tokens),
            )


def answer(mode: Ours, prompt: list[int], options: Namespace) -> tuple[list[int], Count]:
    """Our tokens, and what was accepted for them."""
    mode.forget()
    found = mode.answer(prompt, options.tokens, Options())
    counted = found.speculation
    return found.tokens, Count(counted["accepted"], counted["verified"])


def parting(llm: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> Parting | None:
    """Where two answers first differ, None where neither does."""
    place = common_prefix(ours, theirs)
    if place == min(len(ours), len(theirs)):
        return None
    a, b = ours[place], theirs[place]
    rows = [row(llm, [*prompt, *theirs[:place]], together) for together in ROWS]
    return Parting(place, a, b, [float(logits[a] - logits[b]) for logits in rows])


def shown(count: Count) -> str:
    """As `29 of 121`."""
    return f"{count.accepted} of {count.verified}"


def line(answer: Answer) -> str:
    """Both counts, whether the texts are equal, and if not the margins at which they part."""
    counts = f"{answer.question}: ours {shown(answer.ours)}, theirs {shown(answer.theirs)}"
    if answer.parting is None:
        return f"{counts}; equal texts"
    place, ours, theirs, margins = answer.parting
    kind = "near-tie" if answer.parting.near else "NO near-tie"
    found = ", ".join(f"{margin:+.3f}" for margin in margins)
    return f"{counts}; parts at token {place} ({ours} for {theirs}), {kind}: margins {found}"


def summary(found: list[Answer]) -> str:
    """The sums over equal texts, and what the others are."""
    equal = [a for a in found if a.parting is None]
    near = sum(a.parting.near for a in found if a.parting is not None)
    ours, theirs = (
        Count(sum(c.accepted for c in counts), sum(c.verified for c in counts))
        for counts in ([a.ours for a in equal], [a.theirs for a in equal])
    )
    return (
        f"{len(equal)} of {len(found)} texts equal, {near} part at near-ties, {len(found) - len(equal) - near} elsewhere; "
        f"over equal texts ours {shown(ours)}, theirs {shown(theirs)}"
    )


if __name__ == "__main__":
    main()
