"""What predicts whether a sampled token is accepted: log-loss of each figure that a draft could report about it, by temperature.

TARGET answers the first turns of QUESTIONS (Spec-Bench's format, every --every-th one) at each of --temps, without drafts, with
noise that drafts share, from the tokens that --top-k, --top-p and --min-p leave. At each token of these texts each draft draws
with the same noise from what min-p leaves; its token is accepted if it is the text's. A figure's values are put into bins of
equal counts. Each bin's share of accepted tokens is estimated from every other text and evaluated on the rest. `all of them` is a
logistic model of all figures and their squares. Lower is better: `nothing known` is the loss of the mean alone, `used` is what
the engine reports to the policy (`surety` in native/ps_draft.c). Nothing is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from common import Made, arguments, keep, made_by, page_of
from companion import fitted
from rows import Text, open_pair, prompts_of, record

from pyspec import Sampling, SpeculativeLlama
from pyspec.measure.draws import noise_of
from pyspec.measure.report import table

Array = npt.NDArray[np.float64]
OPTIONS = {
    "temps": "0.6,0.8,1.0", "every": 6, "tokens": 96, "threads": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "out": None,
}  # fmt: skip
BINS, RIDGE = 16, 1.0
HALF_BIN = 0.5  # tokens of each kind that a bin starts with
MAX_LEAD = 16.0
RECENT = 0.9  # decay of the running share of accepted tokens, per token

WORDS: Mapping[str, Callable[[Mapping[str, Array]], Array]] = {
    "used: lead + half of the drawn token's": lambda v: np.minimum(v["lead"], MAX_LEAD) + 0.5 * logit(v["p"]),
    "lead of the drawn token, with noise": lambda v: v["lead"],
    "drawn token's probability": lambda v: logit(v["p"]),
    "largest probability": lambda v: logit(v["largest"]),
    "entropy": lambda v: v["entropy"],
    "mass that min-p leaves": lambda v: v["mass"],
    "accepted so far": lambda v: v["recent"],
}  # fmt: skip


class Texts(msgspec.Struct):
    """Results for one draft at one temperature. losses: by figure."""

    draft: str
    temperature: float
    tokens: int
    accepted: float
    losses: dict[str, float]


class Estimates(Made):
    """All results."""

    found: list[Texts]

    def page(self) -> str:
        """The title, a description and the table."""
        return page_of(
            "What tells whether a drawn token is accepted", __doc__, self.made, self.table()
        )

    def table(self) -> str:
        """A line for each figure, a column for each draft and temperature."""
        names = [f"{one.draft}, {one.temperature:g}" for one in self.found]
        rows = [["tokens judged", *(str(one.tokens) for one in self.found)]]
        rows += [["share accepted", *(f"{one.accepted:.3f}" for one in self.found)]]
        for word in self.found[0].losses:
            rows.append([word, *(f"{one.losses[word]:.4f}" for one in self.found)])
        return table(["nats a token", *names], rows)


def logit(p: Array) -> Array:
    """The logit of probabilities, which are kept away from 0 and 1."""
    p = np.clip(p, 1e-6, 1.0 - 1e-6)
    return np.log(p / (1.0 - p))


def values(text: Text, how: Sampling) -> dict[str, Array]:
    """At each place: whether the draft's token is the text's, and the figures that the draft could report."""
    found: dict[str, list[float]] = {
        name: [] for name in ("accepted", "p", "largest", "entropy", "mass", "lead", "recent")
    }
    recent = 0.5
    for at, place in text.places.items():
        row = place.rows[0].astype(np.float64)
        p = np.exp(row - row.max())
        p /= p.sum()
        ids = np.flatnonzero(p >= how.min_p * p.max()).astype(np.int32)
        cold = np.exp((row - row.max()) / how.temperature)
        cold /= cold.sum()
        scores = row[ids] / how.temperature + noise_of(how.seed, at, ids)
        order = np.argsort(scores)
        first = ids[order[-1]]
        accepted = float(first == text.tokens[at])
        lead = scores[order[-1]] - scores[order[-2]] if len(ids) > 1 else MAX_LEAD
        told = (
            accepted,
            p[first],
            cold.max(),
            -(cold * np.log(cold + 1e-30)).sum(),
            p[ids].sum(),
            how.temperature * lead,
            recent,
        )
        for name, value in zip(found, told):
            found[name].append(float(value))
        recent = RECENT * recent + (1.0 - RECENT) * accepted
    return {name: np.array(each) for name, each in found.items()}


def loss(accepted: Array, p: Array) -> float:
    """Nats a token."""
    p = np.clip(p, 1e-3, 1.0 - 1e-3)
    return float(-(accepted * np.log(p) + (1.0 - accepted) * np.log(1.0 - p)).mean())


def binned(known: Array, accepted: Array, asked: Array) -> Array:
    """Acceptance predicted by the bin of a figure's value: bins are fitted on `known`, predictions are for `asked`."""
    edges = np.unique(np.quantile(known, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, known)
    seen = np.bincount(bins, minlength=len(edges) + 1)
    hits = np.bincount(bins, accepted, minlength=len(edges) + 1)
    return ((hits + HALF_BIN) / (seen + 2.0 * HALF_BIN))[np.searchsorted(edges, asked)]


def logistic(known: Array, accepted: Array, asked: Array) -> Array:
    """Acceptance predicted by a logistic model with a ridge, from all figures and their squares."""
    mean, spread = known.mean(0), known.std(0) + 1e-9

    def features(x: Array) -> Array:
        z = np.clip((x - mean) / spread, -4.0, 4.0)
        return np.column_stack([np.ones(len(z)), z, z * z])

    weights = fitted(features(known), accepted, ridge=RIDGE)
    found: Array = 1.0 / (1.0 + np.exp(-features(asked) @ weights))
    return found


def judge(draft: str, temperature: float, texts: Sequence[Mapping[str, Array]]) -> Texts:
    """The loss of each figure: fitted on every other text, evaluated on the rest."""
    fit, rest = (
        {name: np.concatenate([one[name] for one in half]) for name in texts[0]}
        for half in (texts[::2], texts[1::2])
    )
    share, seen = fit["accepted"], rest["accepted"]
    losses = {"nothing known": loss(seen, np.full(len(seen), share.mean()))}
    for name, word in WORDS.items():
        losses[name] = loss(seen, binned(word(fit), share, word(rest)))
    together = [np.column_stack([word(half) for word in WORDS.values()]) for half in (fit, rest)]
    losses["all of them"] = loss(seen, logistic(together[0], share, together[1]))
    return Texts(draft, temperature, len(seen), float(seen.mean()), losses)


def told(llm: SpeculativeLlama, temperature: float, options: Any) -> list[dict[str, Array]]:
    """The figures of each answer; the i-th answer has seed i."""
    found = []
    for seed, prompt in enumerate(prompts_of(llm, options)):
        how = Sampling(
            temperature=temperature, top_k=options.top_k, top_p=options.top_p, min_p=options.min_p, seed=seed
        )  # fmt: skip
        text = record(llm, prompt, how, options.tokens, length=1)
        found += [values(text, how)] if text.places else []
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "target", "questions", "drafts*", **OPTIONS)
    found = []
    for path in options.drafts:
        with open_pair(options.target, path, options.threads) as llm:
            for temperature in map(float, options.temps.split(",")):
                found.append(judge(Path(path).stem, temperature, told(llm, temperature, options)))
                print(found[-1], file=sys.stderr, flush=True)
    results = Estimates(*made_by("estimator", words), found)
    print(results.table())
    if options.out:
        keep(results, options.out / "estimator.json")


if __name__ == "__main__":
    main()
