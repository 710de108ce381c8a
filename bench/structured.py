"""What lookup gains under a logits processor: JSON of a schema by outlines, which repeats names that the prompt has.

    python bench/structured.py MODEL.gguf [--threads 2] [--repeat 3] [--drafts none,lookup]

Needs pyspec-llama[clients]. Every draft gets the same tasks in turns. The table has each draft's median seconds, tokens a
second, drafted tokens that were accepted, and how many texts are those of the first draft: rows that are verified together
round otherwise, so a near-tie may fall the other way.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import outlines
from outlines.types import JsonSchema

from pyspec.llama import SpeculativeLlama

NAMES = ("name", "street", "city", "country", "phone")
RECORDS = (
    ("Margaret Featherstone", "14 Windmill Lane", "Nottingham", "England", "+44 115 496 0213"),
    ("Bartholomew Okonkwo", "88 Riverside Avenue", "Philadelphia", "United States", "+1 215 555 0147"),
    ("Anneliese Schwarzenbach", "Bahnhofstrasse 201", "Winterthur", "Switzerland", "+41 52 555 0190"),
    ("Giovanni Della Francesca", "Via Garibaldi 37", "Castelfranco", "Italy", "+39 0423 555 018"),
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 40} for name in NAMES},
    "required": list(NAMES),
    "additionalProperties": False,
}


def prompt_of(index: int) -> str:
    """The records as JSON, then the one that is to be said again."""
    lines = [json.dumps(dict(zip(NAMES, record))) for record in RECORDS]
    return (
        "People, one JSON object a line:\n" + "\n".join(lines)
        + f"\n\nThe JSON object of {RECORDS[index][0]} again:\n"
    )  # fmt: skip


def main(words: list[str] | None = None) -> None:
    """Measure all drafts and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--drafts", default="none,lookup")
    options = parser.parse_args(words)
    drafts = options.drafts.split(",")
    llms = {draft: opened(options, draft) for draft in drafts}
    seconds: dict[str, list[float]] = {draft: [] for draft in drafts}
    accepted: dict[str, int] = {}
    texts: dict[str, list[str]] = {}
    rate: dict[str, list[float]] = {draft: [] for draft in drafts}
    for turn in range(options.repeat + 1):  # the first warms the schema's index
        for draft, llm in llms.items():
            took, texts[draft], accepted[draft] = ask(llm)
            tokens = sum(len(llm.tokenize(text.encode())) for text in texts[draft])
            if turn:
                seconds[draft].append(took)
                rate[draft].append(tokens / took)
    print(texts[drafts[0]][0])
    print("\n| draft | s | tokens/s | accepted | texts as the first draft's |\n|" + " --- |" * 5)
    for draft in drafts:
        same = sum(a == b for a, b in zip(texts[draft], texts[drafts[0]]))
        times = f"{median(seconds[draft]):.2f} | {median(rate[draft]):.1f}"
        print(f"| {draft} | {times} | {accepted[draft]} | {same} of {len(RECORDS)} |")


def opened(options: argparse.Namespace, draft: str) -> SpeculativeLlama:
    """An object with one draft."""
    return SpeculativeLlama(
        options.model, n_ctx=1024, n_threads=options.threads, draft=draft, seed=1
    )


def ask(llm: SpeculativeLlama) -> tuple[float, list[str], int]:
    """All tasks: seconds, texts, accepted tokens."""
    model: Any = outlines.from_llamacpp(llm)
    generator = outlines.Generator(model, JsonSchema(json.dumps(SCHEMA)))
    texts, accepted = [], 0
    start = time.perf_counter()
    for index in range(len(RECORDS)):
        texts.append(generator(prompt_of(index), max_tokens=200, temperature=0.0))
        accepted += llm.last_speculation["accepted"]
    return time.perf_counter() - start, texts, accepted


if __name__ == "__main__":
    main()
