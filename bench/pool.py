"""What answers in the threads of a pool cost, as in web frameworks: each request, or each piece of a stream, in another one.

    python bench/pool.py MODEL [--repeat 3] [--tokens 64] [--out PATH]

Each contender runs in its own process and answers in its first thread, then in the threads of a pool one after the other, then
as a stream whose pieces are read by the pool's threads. The contenders take turns. Tokens a second of whole answers, prompt
included; temperature 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import perf_counter
from typing import Any

from common import Comparison, Figures, arguments, compare
from measure.contenders import PlainLlama
from measure.report import table

from pyspec import SpeculativeLlama

CONTENDERS = ("llama_cpp", "pyspec:none", "pyspec")
OPTIONS = {"repeat": 3, "tokens": 64, "threads": 2, "title": "", "out": None, "contender": ""}
HEAD = ("contender", "first thread", "a pool's threads", "pieces in a pool's threads", "pool / first")  # fmt: skip
POOL = 4
ANSWERS = 4
PROMPT = [{"role": "user", "content": "Tell me a long story about a dog."}]


class PoolResults(Comparison, kw_only=True):
    """Results for one target. For each contender, tokens a second: first, pool, stream."""

    heading = "Answers in the threads of a pool"
    intro = (
        "Web frameworks answer each request, and some read each piece of a stream, in any thread of a pool. Every thread that "
        "has decoded keeps OpenMP workers; once they outnumber the processors, decodes are slow. "
        '"llama_cpp" is llama_cpp.Llama, "pyspec" is `SpeculativeLlama` with its defaults, "pyspec:none" without drafts. '
        "Tokens a second of whole answers."
    )
    work = "answers of at most {0.max_tokens} tokens"

    def table(self) -> str:
        """A row for each contender."""
        rows = [
            [
                one["name"],
                *(f"{one[key]:.1f}" for key in ("first", "pool", "stream")),
                f"{one['pool'] / one['first']:.2f}",
            ]
            for one in self.contenders
        ]
        return table(HEAD, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    options = arguments(__doc__, words, "model", **OPTIONS)

    def measured(contender: str) -> Figures:
        return measure(opened(contender, options), options.tokens)

    compare(PoolResults, "pool", options, words, CONTENDERS, measured, alone=True)


def opened(contender: str, options: Any) -> Any:
    """Load the model as this contender does."""
    how = {"n_ctx": 2048, "n_threads": options.threads, "n_threads_batch": options.threads}
    if contender == "llama_cpp":
        return PlainLlama(options.model, verbose=False, **how)
    return SpeculativeLlama(options.model, draft="none" if ":" in contender else "auto", **how)


def measure(llm: Any, tokens: int) -> Figures:
    """Return tokens a second in the first thread, in a pool's, and of a stream whose pieces the pool's threads read."""

    def answer() -> float:
        return rate(lambda: llm.create_chat_completion(PROMPT, max_tokens=tokens, temperature=0))

    with ThreadPoolExecutor(POOL) as pool:
        met = Barrier(POOL)
        list(pool.map(lambda _: met.wait(), range(POOL)))  # the pool has all its threads now
        answer()
        first = [answer() for _ in range(ANSWERS)]
        each = [pool.submit(answer).result() for _ in range(POOL + ANSWERS)][POOL:]

        def streamed() -> dict[str, Any]:
            pieces = llm.create_chat_completion(
                PROMPT, max_tokens=tokens, temperature=0, stream=True
            )
            n = -2  # the first chunk and the last have no text
            while pool.submit(next, pieces, None).result() is not None:
                n += 1
            return {"usage": {"completion_tokens": n}}

        stream = [rate(streamed) for _ in range(ANSWERS)]
    names = ("first", "pool", "stream")
    return {name: sum(found) / len(found) for name, found in zip(names, (first, each, stream))}


def rate(work: Callable[[], Any]) -> float:
    """Return the tokens a second of an answer."""
    start = perf_counter()
    answer = work()
    return float(answer["usage"]["completion_tokens"]) / (perf_counter() - start)


if __name__ == "__main__":
    main()
