"""What a draft of another vocabulary brings, whose drafts go through text: tokens a verify, and speed against plain decoding.

    python bench/translated.py MODEL --draft gemma-3-270m --out results/translated/NAME.json

Two kinds of texts: prose that the model writes freely, and a list that it says again. Contenders are plain decoding, the draft
with a fixed length, and the draft with the length that `auto` chooses; they take turns. `bench/stretch.py` makes targets that
cost more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from common import Comparison, Figures, arguments, in_turns, medians, publish

from pyspec.llama import SpeculativeLlama
from pyspec.measure.report import table
from pyspec.rules import Strict
from pyspec.store.locate import resolve
from pyspec.text.template import ChatTemplate

CARDS = (
    "amber harbour",
    "copper lantern",
    "silver orchard",
    "violet meadow",
    "crimson valley",
    "golden thicket",
)
TEXTS = {
    "prose": "Explain in a few paragraphs how rivers shape the land that they run through.",
    "copy": "Print this list again, exactly as it is:\n" + "\n".join(f"{i}. {c}" for i, c in enumerate(CARDS, 1)),
}  # fmt: skip
OPTIONS = {
    "draft": "gemma-3-270m", "length": 4, "tokens": 64, "threads": 2, "repeat": 3, "title": "", "out": None
}  # fmt: skip


class TranslatedResults(Comparison, kw_only=True):
    """A run over one target. Of each contender and text: accepted, verifies, tokens, rate (a second)."""

    heading = "Drafts of another vocabulary"
    intro = (
        "Such a draft reads the answer as text and drafts text (`pyspec/drafters.py`). `auto` never takes one: only "
        "`--draft FILE` does. Tokens a verify are an answer's by the target's decodes for it; speeds are tokens a second after "
        "the first token. `x8` is the same target with seven idle blocks behind each of its own: its text at the cost of a model "
        "eight times as deep."
    )
    work = "two texts of at most {0.max_tokens} tokens"

    def table(self) -> str:
        """A line a contender and text."""
        plain = self.find("plain")
        rows = [
            [one["name"], text, f"{one[f'{text} tokens'] / one[f'{text} verifies']:.2f}",
             f"{one[f'{text} accepted']:.0f} of {one[f'{text} drafted']:.0f}", f"{one[f'{text} rate']:.1f}",
             f"{one[f'{text} rate'] / plain[f'{text} rate']:.2f}" if plain else "-"]
            for text in TEXTS
            for one in self.contenders
        ]  # fmt: skip
        head = [
            "contender",
            "text",
            "tokens a verify",
            "accepted",
            "tokens/s",
            "times plain decoding",
        ]
        return table(head, rows)


def main(words: list[str] | None = None) -> None:
    """Measure the contenders in turns and print a Markdown table."""
    given = sys.argv[1:] if words is None else words
    options = arguments(__doc__, given, "model", **OPTIONS)
    options.model = str(resolve(options.model))
    kinds = {"plain": ("none", "auto"), f"{options.draft}, {options.length} tokens": (options.draft, f"fixed:{options.length}"),
             f"{options.draft}, auto": (options.draft, "auto")}  # fmt: skip
    llms = {
        name: SpeculativeLlama(
            options.model,
            draft=draft,
            companion="none",
            verification=Strict(),
            length=length,
            n_ctx=512,
            n_threads=options.threads,
            verbose=False,
        )
        for name, (draft, length) in kinds.items()
    }
    try:
        for llm in llms.values():
            answer(llm, TEXTS["copy"], 8)
        runs = in_turns(llms, options.repeat, lambda name: measure(llms[name], options.tokens))
    finally:
        for llm in llms.values():
            llm.close()
    found = {name: medians(each) for name, each in runs.items()}
    publish(TranslatedResults, "translated", options, given, found)


def measure(llm: SpeculativeLlama, tokens: int) -> Figures:
    """Each text once, from an empty context."""
    figures: Figures = {}
    for name, text in TEXTS.items():
        llm.reset()
        figures |= {f"{name} {key}": value for key, value in answer(llm, text, tokens).items()}
    return figures


def answer(llm: SpeculativeLlama, text: str, tokens: int) -> Figures:
    """One greedy answer: its tokens and verifies, what was accepted of what was drafted, and tokens a second after the first."""
    prompt: Sequence[int] = ChatTemplate.of(llm).prompt([{"role": "user", "content": text}])
    times = []
    for _ in llm.generate(prompt, temp=0.0):
        times.append(time.perf_counter())
        if len(times) == tokens:
            break
    block = llm.last_speculation
    return {
        "tokens": float(len(times)),
        "verifies": float(block["rounds"]),
        "drafted": float(block["drafted"]),
        "accepted": float(block["accepted"]),
        "rate": (len(times) - 1) / (times[-1] - times[0]),
    }


if __name__ == "__main__":
    main()
