"""What lookup gains under a logits processor: JSON of a schema by outlines, which repeats names from the prompt.

Needs pyspec-llama[clients]. Every draft gets the same tasks in turns. The table has each draft's median seconds, tokens a second,
accepted drafted tokens, and how many texts equal those of the first draft: rows that are verified together round differently, so
near-ties may be decided differently.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import outlines
from common import arguments, in_turns
from outlines.types import JsonSchema

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.measure.report import table

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
    """A prompt with the records as JSON, then a request to repeat one."""
    lines = [json.dumps(dict(zip(NAMES, record))) for record in RECORDS]
    return (
        "People, one JSON object a line:\n" + "\n".join(lines)
        + f"\n\nThe JSON object of {RECORDS[index][0]} again:\n"
    )  # fmt: skip


def main(words: list[str] | None = None) -> None:
    """Measure all drafts and print a Markdown table."""
    options = arguments(__doc__, words, "model", threads=2, repeat=3, drafts="none,lookup")
    shape = {"n_ctx": 1024, "n_threads": options.threads, "seed": 1}
    llms = {
        draft: SpeculativeLlama(options.model, draft=draft, **shape)
        for draft in options.drafts.split(",")
    }
    found = in_turns(llms, options.repeat + 1, lambda draft: ask(llms[draft]))
    wanted = next(iter(found.values()))[0]["texts"]
    rows = []
    for draft, (_, *runs) in found.items():  # the first warms the schema's index
        seconds = median(run["seconds"] for run in runs)
        rate = median(run["tokens"] / run["seconds"] for run in runs)
        same = sum(a == b for a, b in zip(runs[-1]["texts"], wanted))
        counts = [str(runs[-1]["accepted"]), f"{same} of {len(RECORDS)}"]
        rows.append([draft, f"{seconds:.2f}", f"{rate:.1f}", *counts])
    print(wanted[0] + "\n")
    print(table(["draft", "s", "tokens/s", "accepted", "texts as the first draft's"], rows))


def ask(llm: SpeculativeLlama) -> dict[str, Any]:
    """Run all tasks: seconds, texts, their tokens, and how many of those were accepted drafts."""
    model: Any = outlines.from_llamacpp(llm)
    generator = outlines.Generator(model, JsonSchema(json.dumps(SCHEMA)))
    texts, accepted = [], 0
    start = time.perf_counter()
    for index in range(len(RECORDS)):
        texts.append(generator(prompt_of(index), max_tokens=200, temperature=0.0))
        accepted += llm.last_speculation["accepted"]
    seconds = time.perf_counter() - start
    tokens = sum(len(llm.tokenize(text.encode())) for text in texts)
    return {"seconds": seconds, "texts": texts, "tokens": tokens, "accepted": accepted}


if __name__ == "__main__":
    main()
