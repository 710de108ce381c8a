"""How many answers differ from those of `llama_cpp.Llama`: 20 prompts x 2 temperatures x 3 drafts, strict.

Both sides use flash attention and the same seeds. Where an answer differs, its first difference is looked at: rows that
are computed together round otherwise than rows computed one by one, and a near-tie falls the other way. It is one if the
original's own row, computed with the rows before it in one batch, gives our token to the same sampler. `others` are those
that this does not make again: by then the KV holds what other widths had rounded, which one batch does not repeat.
With `--out FOLDER` what was found of this file is kept there, and the page of all files that were compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import msgspec
import numpy as np
from common import arguments

from pyspec.llama import SpeculativeLlama
from pyspec.measure.records import commit, machine, published
from pyspec.measure.report import code_of, table
from pyspec.target import TargetLlama
from pyspec.tokens import common_prefix

SEED = 7
HEAD = ("draft", "temperature", "answers", "equal", "near-ties", "others")
TEMPERATURES = (0.0, 0.8)
DRAFTS = ("lookup", "smollm2-companion", "smollm2-eagle3")
PROMPTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "The capital of France is Paris. The capital of Germany is",
    "Q: What is 12 times 12?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "Water boils at 100 degrees. Explain why:",
    "import numpy as np\n\ndef mean(values):",
    '{"name": "Ada", "born": 1815}\n{"name": "Alan", "born":',
    "Translate to French: Good morning, my friend.",
    "Ingredients for pancakes:\n- flour\n- milk\n-",
    "In 1969, two astronauts",
    "SELECT name, age FROM people WHERE",
    "The opposite of hot is cold. The opposite of up is",
    "To be, or not to be, that is the question:",
    "Monday, Tuesday, Wednesday,",
    "A short poem about the rain:\n",
    "<ul>\n  <li>One</li>\n  <li>Two</li>\n",
)


class Difference(NamedTuple):
    """Where an answer leaves the original's: the token's place, both ids, and whether it is a near-tie."""

    prompt: str
    temperature: float
    draft: str
    place: int
    ours: int
    theirs: int
    near: bool

    def __str__(self) -> str:
        """As a line of the page."""
        kind = "near-tie" if self.near else "NO near-tie"
        asked = f"{self.prompt.splitlines()[0]!r}, T {self.temperature:g}, {self.draft}"
        return f"{asked}: token {self.place}, {self.ours} for {self.theirs}; {kind}"


class Parity(msgspec.Struct):
    """What was found of one file; rows: of the table."""

    command: str
    machine: str
    commit: str
    target: str
    rows: list[list[str]]
    differences: list[str]

    def page(self) -> str:
        """Its part of the page."""
        made = f"Made by `{self.command}`{code_of(self.commit)} on {self.machine}."
        found = "\n".join(f"- {difference}" for difference in self.differences)
        return f"## {self.target}\n\n{made}\n\n{table(HEAD, self.rows)}\n\n{found}\n"


def main(words: list[str] | None = None) -> None:
    """Count, and print a Markdown table and each difference; with --out, keep it."""
    how = {
        "prompts": len(PROMPTS),
        "tokens": 48,
        "threads": 1,
        "drafts": ",".join(DRAFTS),
        "out": None,
    }
    options = arguments(__doc__, words, "model", **how)
    n, drafts = options.prompts, options.drafts.split(",")
    found = list(compare(options.model, drafts, n, options.tokens, options.threads))
    rows = []
    for draft, temperature in product(drafts, TEMPERATURES):
        mine = [d for d in found if (d.draft, d.temperature) == (draft, temperature)]
        near = sum(d.near for d in mine)
        rows.append([draft, *map(str, (temperature, n, n - len(mine), near, len(mine) - near))])
    command = published("python bench/parity.py", words if words is not None else sys.argv[1:])
    name = Path(options.model).stem
    result = Parity(command, machine(), commit(), name, rows, [str(each) for each in found])
    print(result.page())
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_bytes(msgspec.json.encode(result) + b"\n")
        write(options.out)


def write(folder: Path) -> None:
    """The page of all files in a folder."""
    about = (__doc__ or "").partition("\n\n")[2].strip()
    found = [
        msgspec.json.decode(path.read_bytes(), type=Parity)
        for path in sorted(folder.glob("*.json"))
    ]
    parts = [
        "# Answers beside those of llama_cpp.Llama\n",
        f"{about}\n",
        *(one.page() for one in found),
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def compare(
    model: str, drafts: Sequence[str], n_prompts: int, n: int, threads: int
) -> Iterator[Difference]:
    """Every answer that is not the original's."""
    options: dict[str, Any] = {
        "n_ctx": 512, "n_threads": threads, "flash_attn": True, "trust": True, "verbose": False
    }  # fmt: skip
    with closing(TargetLlama(model, **options)) as original:
        wanted = {
            (prompt, temperature): answer(original, prompt, temperature, n)
            for prompt in PROMPTS[:n_prompts]
            for temperature in TEMPERATURES
        }
        for draft in drafts:
            with SpeculativeLlama(model, draft=draft, length="fixed:4", **options) as llm:
                for (prompt, temperature), theirs in wanted.items():
                    ours = answer(llm, prompt, temperature, n)
                    if ours != theirs:
                        yield difference(original, prompt, temperature, draft, ours, theirs)


def answer(llm: Any, prompt: str, temperature: float, n: int) -> list[int]:
    """The first n ids, or fewer if it ends."""
    llm.reset()  # so that how much of a prompt is read does not depend on the one before
    llm.set_seed(SEED)
    ids = []
    with closing(llm.generate(llm.tokenize(prompt.encode()), temp=temperature)) as stream:
        for token in stream:
            ids.append(int(token))
            if len(ids) == n or token == llm.token_eos():
                break
    return ids


def difference(
    llm: Any, prompt: str, temperature: float, draft: str, ours: list[int], theirs: list[int]
) -> Difference:
    """The first difference, tried again on rows of batches that end there and begin one to five rows before."""
    place = common_prefix(ours, theirs)
    mine, its = (ids[place] if place < len(ids) else -1 for ids in (ours, theirs))
    text = [*llm.tokenize(prompt.encode()), *theirs[:place]]
    near = False
    for together in range(1, 6):
        row(llm, text, together)
        near = near or draw(llm, temperature, place) == mine
    return Difference(prompt, temperature, draft, place, mine, its, near)


def row(llm: Any, text: list[int], together: int) -> np.ndarray:
    """Logits behind a text whose last `together` tokens are decoded in one batch, [n_vocab]."""
    llm.reset()
    together = min(together, len(text) - 1)
    llm.eval(text[:-together])
    llm.eval(text[-together:])
    pointer = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.array(np.ctypeslib.as_array(pointer, (llm.n_vocab(),)))


def draw(llm: Any, temperature: float, place: int) -> int:
    """What the answer's sampler, which has chosen `place` tokens before, makes of the last row that was decoded."""
    llm.set_seed(SEED)
    sampler = llm._init_sampler(temp=temperature)  # noqa: SLF001 - the one that its answers have
    *_, token = (sampler.sample(llm._ctx, -1) for _ in range(place + 1))  # noqa: SLF001 - as above
    return int(token)


if __name__ == "__main__":
    main()
