"""Tokens accepted from drafts that read states: here and in llama-server, with the same files and length, strict and greedy.

    python bench/accepted.py MODEL --draft FILE     a file that drafts for it; without it the shipped head
    python bench/accepted.py random:KIND            random tiny files, of which little is accepted: eagle3, mtp, mtp-file,
                                                    hy_v3, mimo2 and step35 (three heads in turn), assistant, dflash, dspark

Both programs draft the same number of tokens in every round, from the second token of an answer on, and the draft reads the whole
prompt (elsewhere pyspec lets it read only the end). For some kinds the server decodes a verified batch a second time, so states
and rows round differently there, and texts and drafts may diverge. The server also gives next-token heads a row of zeros before
the first token, and drafts past a token that ends the text, which counts as verified there. Where texts diverge, the target's
logits for both tokens are computed with 1 to 6 rows in one batch. The margin is ours minus theirs in each; it is a near-tie if
its sign changes, or if its size is below the change from batch to batch. At the other places our answer is recomputed with the
same number of rows in each decode as in its rounds: `ours again` says whether that gives our choice again. The last line of a
table covers the texts that are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import llama_cpp
import msgspec
import numpy as np
from common import Made, arguments, made_by
from measure.contenders import Files, Ours, open_peer
from measure.equal import choices
from measure.questions import load_questions
from measure.report import table
from measure.tasks import Options, parse_mode

from pyspec.engine.target import TargetLlama
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store.heads import ASSISTANT, CHAINED_HEADS, MTP, States, kind_of_draft
from pyspec.store.locate import resolve
from pyspec.text.template import ChatTemplate
from pyspec.text.tokens import common_prefix

ROWS = range(1, 7)
CONTEXT = 2048
OPTIONS = {
    "draft": "", "server": None, "questions": None, "every": 4, "length": 3, "tokens": 96, "threads": 1, "out": None
}  # fmt: skip
SHIPPED = "smollm2-eagle3"
COUNTED = ("accepted", "verified")
HEAD = ("question", "ours", "theirs", "texts", "margins")
RANDOM = "random:"
PROMPTS = 16

Prompt = tuple[str, list[int]]
"""Its name in the rows, and its tokens."""


class Accepted(Made):
    """Results for one pair."""

    title: str
    rows: list[list[str]]

    def page(self) -> str:
        """The pair's section of the page."""
        return f"## {self.title}\n\n{self.made}\n\n{table(HEAD, self.rows)}\n"


def row(llm: Any, text: list[int], together: int) -> np.ndarray:
    """Logits after a text whose last `together` tokens are decoded in one batch, [n_vocab]."""
    llm.reset()
    together = min(together, len(text) - 1)
    llm.eval(text[:-together])
    llm.eval(text[-together:])
    pointer = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.array(np.ctypeslib.as_array(pointer, (llm.n_vocab(),)))


def main(words: list[str] | None = None) -> None:
    """Print a Markdown table, a line for each question and one for the sums over equal texts; with --out, also store it there."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    with pair(options.model, options.draft) as (model, draft, title):
        rows = compare(model, draft, options)
    found = Accepted(*made_by("accepted", words), title, rows)
    print(found.page())
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        write(options.out.parent)


def write(folder: Path) -> None:
    """The page of all files in a folder."""
    about = (__doc__ or "").rpartition("\n\n")[2].strip()
    found = [
        msgspec.json.decode(p.read_bytes(), type=Accepted) for p in sorted(folder.glob("*.json"))
    ]
    parts = [
        "# Tokens accepted here and in llama-server\n",
        f"{about}\n",
        table(("files", *HEAD[1:4]), [[f.title, *f.rows[-1][1:4]] for f in found]) + "\n",
        *(f.page() for f in found),
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


# -- pairs -------------------------------------------------------------------------------------------------------------


@contextmanager
def pair(model: str, draft: str) -> Iterator[tuple[Path, Path | None, str]]:
    """Target, draft, and their title on the page; without a draft, the head is inside the target."""
    if not model.startswith(RANDOM):
        files = resolve(model), resolve(draft or SHIPPED)
        yield *files, f"{files[1].stem} for {files[0].stem}"
        return
    kind = model.removeprefix(RANDOM)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # it can write such files
    with TemporaryDirectory() as folder:
        yield *_KINDS[kind](Path(folder)), f"Random tiny files, {kind}"


def _eagle3(folder: Path) -> tuple[Path, Path | None]:
    from helpers import tiny, tiny_eagle  # noqa: PLC0415 - of the tests, as below

    target = tiny.write(folder / "target.gguf", n_layer=tiny_eagle.N_LAYER)
    return target, tiny_eagle.write(folder / "eagle3.gguf")


def _mtp(folder: Path, *, apart: bool = False) -> tuple[Path, Path | None]:
    from helpers import tiny  # noqa: PLC0415

    shape: dict[str, Any] = {"arch": "qwen35", "n_layer": 4, "n_heads": 1}
    target = tiny.write(folder / "target.gguf", **shape)
    return target, tiny.write(folder / "mtp.gguf", trunk=False, **shape) if apart else None


def _chained(folder: Path, arch: str) -> tuple[Path, Path | None]:
    from helpers import tiny_heads  # noqa: PLC0415

    target = folder / "target.gguf"
    tiny_heads.write(target, arch, 3, words=True)
    return target, None


def _assistant(folder: Path) -> tuple[Path, Path | None]:
    from helpers import tiny_gemma4  # noqa: PLC0415

    target = tiny_gemma4.write(folder / "target.gguf")
    return target, tiny_gemma4.write_assistant(folder / "assistant.gguf")


def _block(folder: Path, *, markov: bool = False) -> tuple[Path, Path | None]:
    from helpers import tiny, tiny_dflash, tiny_eagle  # noqa: PLC0415

    target = tiny.write(folder / "target.gguf", n_layer=tiny_eagle.N_LAYER)
    return target, tiny_dflash.write(folder / "dflash.gguf", markov=markov)


_KINDS: dict[str, Callable[[Path], tuple[Path, Path | None]]] = {
    "eagle3": _eagle3,
    "mtp": _mtp,
    "mtp-file": partial(_mtp, apart=True),
    **{arch: partial(_chained, arch=arch) for arch in sorted(CHAINED_HEADS)},
    "assistant": _assistant,
    "dflash": _block,
    "dspark": partial(_block, markov=True),
}


# -- answers -----------------------------------------------------------------------------------------------------------


def compare(model: Path, draft: Path | None, options: Any) -> list[list[str]]:
    """A row for each answer, and the sums."""
    shape: dict[str, Any] = {"n_ctx": CONTEXT, "n_threads": options.threads, "trust": True}
    files = Files(model, draft, CONTEXT, options.threads)
    kind = kind_of_draft(draft) if draft else MTP
    peer_name = f"server-{MTP if kind == ASSISTANT else kind}:{options.length}"
    own_draft = str(draft) if draft else MTP
    with (
        patch.object(States, "window", CONTEXT),
        closing(open_peer(peer_name, files, options.server)) as peer,
        SpeculativeLlama(
            str(model), draft=own_draft, companion="none", verbose=False, **shape
        ) as llm,
        closing(TargetLlama(str(model), flash_attn=True, verbose=False, **shape)) as original,
    ):
        own = Ours(llm, parse_mode(f"fixed:{options.length}+strict+model"))
        asked = random_prompts(llm) if options.model.startswith(RANDOM) else questions(llm, options)
        rows = [
            answered(name, prompt, own, peer, original, options.tokens) for name, prompt in asked
        ]
    return [*[shown for shown, _ in rows], summed(rows)]


def answered(
    name: str, prompt: list[int], own: Ours, peer: Any, original: Any, n: int
) -> tuple[list[str], list[int]]:
    """Answer a prompt with both; return its row and counts."""
    own.forget()
    peer.forget()
    how = Options(max_tokens=n)
    ours, theirs = (one.answer(prompt, n, how) for one in (own, peer))
    margins = parting(original, prompt, ours.tokens, theirs.tokens)
    kind = parted(own.llm, prompt, ours, theirs, margins) if margins else "equal"
    counts = [one.speculation.get(k, 0) for one in (ours, theirs) for k in COUNTED]
    shown = ", ".join(f"{margin:+.3f}" for margin in margins) or "-"
    return [name, *shares(counts), kind, shown], counts


def parted(
    llm: SpeculativeLlama, prompt: list[int], ours: Any, theirs: Any, margins: Sequence[float]
) -> str:
    """Classify the place where the answers differ."""
    if near(margins):
        return "near-tie"
    place = common_prefix(ours.tokens, theirs.tokens)
    again = choices(llm, [(prompt, ours)])[place : place + 1] == ours.tokens[place : place + 1]
    return "ours again" if again else "NO near-tie"


def summed(rows: Sequence[tuple[list[str], list[int]]]) -> list[str]:
    """The line that sums up equal texts."""
    kinds = [kind for (*_, kind, _), _ in rows]
    equal = [counts for (*_, kind, _), counts in rows if kind == "equal"]
    sums = [sum(column) for column in zip(*equal)] or [0] * 4
    said = f"{kinds.count('equal')} of {len(rows)}, {kinds.count('near-tie')} near-ties"
    return ["equal texts", *shares(sums), said, "-"]


def questions(llm: Any, options: Any) -> Iterator[Prompt]:
    """Every `options.every`-th question of a file that fits into the context."""
    for question in load_questions(options.questions)[:: options.every]:
        prompt = question.prompt(ChatTemplate.of(llm))
        if len(prompt) + options.tokens <= CONTEXT - 64:
            yield str(question.question_id), prompt


def random_prompts(llm: Any) -> Iterator[Prompt]:
    """Prompts of four random words, repeated."""
    words = np.random.default_rng(1).integers(llm.n_vocab() // 2, llm.n_vocab() - 8, (PROMPTS, 4))
    for i, few in enumerate(words.tolist()):
        yield str(i + 1), (few * 4)[: 6 + i % 9]


def shares(counts: Sequence[int]) -> list[str]:
    """Counts written like `29 of 121`, ours and theirs."""
    return [f"{counts[i]} of {counts[i + 1]}" for i in (0, 2)]


def parting(llm: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> list[float]:
    """Our token's logit minus theirs where two answers first differ, in batches of 1, 2, ... rows; empty if they do not."""
    place = common_prefix(ours, theirs)
    if place == min(len(ours), len(theirs)):
        return []
    a, b = ours[place], theirs[place]
    rows = [row(llm, [*prompt, *theirs[:place]], together) for together in ROWS]
    return [float(logits[a] - logits[b]) for logits in rows]


def near(margins: Sequence[float]) -> bool:
    """Whether the batch size changes the margin by more than its size, or changes its sign."""
    low, high = min(margins), max(margins)
    return not low * high > 0 or min(map(abs, margins)) < high - low


if __name__ == "__main__":
    main()
