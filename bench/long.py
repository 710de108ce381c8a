"""A long prompt: seconds to the first token, and for 100 more, beside `llama_cpp.Llama` and llama.cpp's server.

    python bench/long.py MODEL --server bench/llama_server.py --prompt 15000 --out bench/results/long/NAME.json

The prompt is this project's pages, in the model's tokens. Each contender is loaded anew for each run with its own defaults, a
context of the prompt and the answer, and the same number of threads; temperature 0. `pyspec` drafts as by default, `pyspec:none`
does not. `attention` says what "auto" chose.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import llama_cpp
from common import Comparison, Figures, arguments, compare
from measure.contenders import Clock, Files, PlainLlama, open_peer
from measure.records import TimedAnswer
from measure.report import table
from measure.tasks import Options

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Sampling

OPTIONS = {
    "server": "", "contenders": "pyspec,pyspec:none,llama_cpp,server", "prompt": 15000, "tokens": 101, "threads": 2, "repeat": 3,
    "title": "", "out": None,
}  # fmt: skip
OURS = "pyspec"
_ABOUT = (__doc__ or "").strip()


class Long(Comparison, kw_only=True):
    """A long prompt by contender. prompt: its tokens."""

    heading = "A long prompt"
    intro = _ABOUT
    work = "a prompt of {0.prompt} tokens, and {0.max_tokens} tokens of answer"
    how = "temperature 0; medians of {0.repeat}, the contenders taking turns"

    prompt: int

    def table(self) -> str:
        """Seconds and what they are of ours."""
        head = ("contender", "first token, s", "next 100, s", "both, times as long", "attention")
        ours = self.contenders[0]
        whole = ours["first_s"] + ours["hundred_s"]
        return table(head, [
            [
                one["name"], f"{one['first_s']:.1f}", f"{one['hundred_s']:.2f}",
                f"{(one['first_s'] + one['hundred_s']) / whole:.2f}", {0.0: "plain", 1.0: "flash"}.get(one["flash"], "its own"),
            ]
            for one in self.contenders
        ])  # fmt: skip


def prompt_of(model: str, n: int) -> list[int]:
    """The first n tokens of the project's pages, over and over."""
    pages = sorted(Path(__file__).parents[1].glob(".docs/pages/*.md"))
    text = "\n".join(page.read_text("utf-8") for page in pages)
    with closing(PlainLlama(model, vocab_only=True, verbose=False)) as llm:
        tokens = llm.tokenize(text.encode())
    return (tokens * (n // len(tokens) + 1))[:n]


def answer_ours(options: Namespace, prompt: Sequence[int], draft: str) -> tuple[TimedAnswer, bool]:
    """An answer of the class by its defaults, and whether flash attention was on."""
    with SpeculativeLlama(
        options.model, n_ctx=len(prompt) + options.tokens, n_threads=options.threads,
        **({"draft": draft} if draft else {}), verbose=False,
    ) as llm:  # fmt: skip
        clock = Clock(prompt)
        for step in llm.steps(prompt, Sampling(temperature=0.0), max_tokens=options.tokens):
            clock.got([token.id for token in step.tokens])
        on = llm.context_params.flash_attn_type == llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return clock.turn("length"), on


def answer_of(options: Namespace, prompt: Sequence[int], name: str) -> Figures:
    """The figures of one contender, loaded for this answer."""
    flash = -1.0
    if name.startswith(OURS):
        turn, flash = answer_ours(options, prompt, name.partition(":")[2])
    else:
        n_ctx = len(prompt) + options.tokens
        files = Files(Path(options.model), None, n_ctx, options.threads)
        with closing(open_peer(name, files, Path(options.server))) as peer:
            turn = peer.answer(prompt, options.tokens, Options(temperature=0.0))
    more = len(turn.tokens) - 1
    if more < options.tokens // 2:
        raise RuntimeError(f"{name}: the answer has {more + 1} tokens")
    return {"first_s": turn.first_s, "hundred_s": turn.decode_s / more * 100, "flash": float(flash)}


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print; with --out, also write the page."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    prompt = prompt_of(options.model, options.prompt)
    compare(
        Long, "long", options, words, options.contenders.split(","), lambda name: answer_of(options, prompt, name),
        prompt=len(prompt),
    )  # fmt: skip


if __name__ == "__main__":
    main()
