"""A mixture of experts, where more rows read more experts: what a decode of n rows costs, and whether the default loses there.

    python bench/stretch.py smollm2-135m-instruct-q8_0.gguf MIXTURE.gguf --experts 64 --active 8
    python bench/mixture.py MIXTURE.gguf --draft smollm2-eagle3 --skip 0 --limit 1 --out bench/results/mixture

Two models take turns in one process, one without drafts and one with lookup and DRAFT, neither of which has times from before.
Each answer reads its prompt anew, and nothing is remembered from one to the next. `times plain` compares the processor time of a
token after the prompt, `reading` that of the prompt and the first round, with the draft loaded and without: medians of pairs, in
processor time, since by the clock two runs of one model differ by up to 14 %. Rows are timed by the clock, the shortest of three.
Goals: .97 of plain at least on every question, and about 2 % more for reading at most. A run adds its questions to the file in
--out, so that a page can be made in pieces; each piece is a new process, which begins by knowing nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import process_time
from typing import NamedTuple

import msgspec
from common import Made, arguments, keep, made_by, page_of
from measure.report import table

from pyspec.engine.timing import least_verify_ms
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.profiling.questions import load_questions, select
from pyspec.sampling.chain import Sampling

ROWS = (1, 2, 3, 4, 5, 6, 8, 12)
OPTIONS = {"draft": "smollm2-eagle3", "skip": 0, "limit": 1, "repeat": 5, "tokens": 32, "threads": 0, "out": None}  # fmt: skip
HEAD = ("question", "times plain", "reading", "tokens a round", "plain, ms a token", "texts equal")
FILE = "mixture.json"


class Pair(msgspec.Struct):
    """One question by both models, plain first: processor seconds a token and of reading; tokens a round; equal texts."""

    token_s: tuple[float, float]
    reading_s: tuple[float, float]
    tokens_a_round: float
    equal: bool


class Mixture(Made):
    """All questions so far. curve: milliseconds of a decode by number of rows, of the last run."""

    model: str
    curve: dict[int, float]
    pairs: dict[str, list[Pair]]

    def page(self) -> str:
        """The whole README.md."""
        one = self.curve[1]
        costs = [[str(n), f"{ms:.1f}", f"{ms / one:.2f}"] for n, ms in self.curve.items()]
        curve = table(("rows", "ms", "times one row"), costs)
        rows = [_row(name, pairs) for name, pairs in self.pairs.items()]
        made = f"{self.made} The model is {self.model}."
        return page_of("A mixture of experts", __doc__, made, curve, table(HEAD, rows))


def _row(name: str, pairs: Sequence[Pair]) -> list[str]:
    return [
        name,
        f"{median(pair.token_s[0] / pair.token_s[1] for pair in pairs):.3f}",
        f"{median(pair.reading_s[1] / pair.reading_s[0] for pair in pairs):.3f}",
        f"{median(pair.tokens_a_round for pair in pairs):.2f}",
        f"{1e3 * median(pair.token_s[0] for pair in pairs):.0f}",
        f"{sum(pair.equal for pair in pairs)} of {len(pairs)}",
    ]


class Answer(NamedTuple):
    """An answer whose prompt was read anew: its ids, processor seconds of a token and of reading, tokens a round."""

    ids: list[int]
    token_s: float
    reading_s: float
    tokens_a_round: float


def _answer(llm: SpeculativeLlama, prompt: Sequence[int], tokens: int) -> Answer:
    llm.reset()
    times, ids, first = [process_time()], list[int](), 0
    for step in llm.steps(prompt, Sampling(temperature=0.0), max_tokens=tokens):
        ids += [token.id for token in step.tokens]
        times.append(process_time())
        first = first or len(ids)
    rest = (times[-1] - times[1]) / max(1, len(ids) - first)
    return Answer(ids, rest, times[1] - times[0], llm.last_speculation["mean_length"])


def _pair(
    models: Sequence[SpeculativeLlama], prompt: Sequence[int], tokens: int, turn: int
) -> Pair:
    """Answers of both; they take turns in going first."""
    order = (0, 1) if turn % 2 else (1, 0)
    said = {i: _answer(models[i], prompt, tokens) for i in order}
    plain, drafted = said[0], said[1]
    return Pair(
        (plain.token_s, drafted.token_s), (plain.reading_s, drafted.reading_s),
        drafted.tokens_a_round, plain.ids == drafted.ids,
    )  # fmt: skip


def _curve(llm: SpeculativeLlama) -> dict[int, float]:
    """Times of decodes behind the last answer."""
    text = llm.input_ids[: llm.n_tokens].tolist()
    return least_verify_ms(llm.assembly.engine, text, ROWS, 20.0)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, and add to the page."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    how = {"n_ctx": 1024, "n_threads": options.threads or None, "trust": True, "verbose": False, "memory": False}  # fmt: skip
    models = [
        SpeculativeLlama(options.model, draft=draft, **how)
        for draft in ("none", f"lookup+{options.draft}")
    ]
    path = options.out and options.out / FILE
    before = msgspec.json.decode(path.read_bytes(), type=Mixture).pairs if path and path.exists() else {}  # fmt: skip
    questions = select(load_questions(), 1)[options.skip :][: options.limit]
    pairs: dict[str, list[Pair]] = {}
    for question in questions:
        prompt = question.prompt(models[0].template)
        for llm in models:
            _answer(llm, prompt, 2)  # the file's pages come into memory
        name = f"{question.question_id} {question.category}"
        pairs[name] = [_pair(models, prompt, options.tokens, i) for i in range(options.repeat)]
        print(*_row(name, pairs[name]))
    made = made_by("mixture", words)
    found = Mixture(*made, options.model.rpartition("/")[2], _curve(models[0]), {**before, **pairs})
    print(found.page().partition("The model is")[2])
    if path:
        keep(found, path)


if __name__ == "__main__":
    main()
