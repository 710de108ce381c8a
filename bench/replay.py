"""Recorded rounds played on other cost curves: `auto`, with lookup, with the companion's score, and with a cascade.

ROUNDS are files of `pyspec profile --rounds`; without any, those in bench/rounds: greedy answers of SmolLM2-135M to our own
prompts: all of them with the shipped EAGLE-3 head (eagle3), and two of each kind in two file types with the draft and the
companion that shipped before. `--cost` is a draft step in steps of the target, `--companion-cost` a companion's step in steps
of the draft. Speeds are against plain decoding, without Python's own time; the first half of the answers is played first, and
not counted.

Score: the companion looks at each draft and its view goes into the estimate, in every round (`always`) or where it pays
(`auto`). Cascade: the companion proposes m tokens, the draft checks them in one batch and adds its own, until it has as many as
the policy wants; m is the best by hindsight. Neither can be said of rounds that were recorded without a companion. The oracle
has both drafters and drafts nothing that is not accepted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from common import arguments
from grid import TINY, costs_of
from msgspec.structs import replace

from pyspec.measure.report import table
from pyspec.measure.rounds import Answer, load_rounds
from pyspec.measure.simulate import Costs, Player, Times, fixed_speed, oracle_speed
from pyspec.policy.goodput import GoodputPolicy

ROUNDS = Path(__file__).parent / "rounds"
HEAD = ("rounds", "curve", "best fixed", "auto", "score, auto", "score, always", "cascade", "auto + lookup",
        "of the oracle")  # fmt: skip


class Always(GoodputPolicy):
    """Lets the companion score every draft."""

    def _score(self, places: object) -> bool:
        return True


def play(
    answers: Sequence[Answer], costs: Costs, kind: type[GoodputPolicy] = GoodputPolicy, *,
    companion: bool = False, lookup: bool = False,
) -> float:  # fmt: skip
    """Tokens per ms in the second half of the answers."""
    policy = kind(costs.curve(), companion=companion)
    half = len(answers) // 2
    texts = answers if lookup else [replace(answer, lookups={}) for answer in answers]
    Player(policy, costs).play(texts[:half])
    return Player(policy, costs, 1).play(texts[half:]).speed


def cascade_share(answers: Sequence[Answer], companion: float) -> tuple[float, int, float]:
    """(cost of a drafted token in draft steps, m, share of drafted tokens that are the companion's argmax, too)."""
    runs, agreed, seen = [], 0, 0
    for answer in answers:
        for chain in answer.models.values():
            agree = chain.agree[: chain.matched + 1]
            agreed, seen = agreed + sum(agree), seen + len(agree)
            runs.append(agree)
    step = Times(TINY)
    best = (1.0, 0)
    for m in range(1, 9):
        got = checked = 0
        for run in runs:
            at = 0
            while at < len(run):
                right = next((i for i, ok in enumerate(run[at : at + m]) if not ok), m)
                got += min(right + 1, len(run) - at)
                at += right + 1
                checked += 1
        best = min(best, ((m * companion + step(m + 1)) * checked / max(1, got), m))
    return *best, agreed / max(1, seen)


def row(name: str, answers: Sequence[Answer], options: Namespace, curve: str) -> list[str]:
    """One line of the table."""
    costs = costs_of(curve, options.cost, options.companion_cost)
    half = answers[len(answers) // 2 :]
    fixed = [fixed_speed(half, costs, k) for k in range(17)]
    helped: list[float | None] = [None] * 3
    if has_companion(answers):
        share, _, _ = cascade_share(answers, options.companion_cost)
        helped = [
            play(answers, costs, companion=True),
            play(answers, costs, Always, companion=True),
            play(answers, costs_of(curve, options.cost * share, 1.0)),
        ]
    looked = play(answers, costs, lookup=True)
    speeds = [max(fixed), play(answers, costs), *helped, looked]
    shown = ["-" if speed is None else f"{speed / fixed[0]:.3f}" for speed in speeds]
    return [name, curve, *shown, f"{looked / oracle_speed(half, costs):.3f}"]


def has_companion(answers: Sequence[Answer]) -> bool:
    """Whether a companion looked at the drafts when they were recorded."""
    return any(chain.agree for answer in answers for chain in answer.models.values())


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, and of each file what a cascade would make of a draft."""
    how = {"curve": "Q4_K_M,BF16,GPU", "cost": 0.1, "companion_cost": 0.1}
    options = arguments(__doc__, words, "rounds*", **how)
    rows, said = [], []
    for path in map(Path, options.rounds or sorted(ROUNDS.glob("*.npz"))):
        answers = load_rounds(path)
        rows += [row(path.stem, answers, options, curve) for curve in options.curve.split(",")]
        if not has_companion(answers):
            continue
        share, m, agreed = cascade_share(answers, options.companion_cost)
        said.append(
            f"{path.stem}: the companion has the draft's token {100 * agreed:.0f} % of the time; checked {m} at a time, a "
            f"drafted token costs {share:.2f} steps"
        )
    print(table(HEAD, rows), *said, sep="\n\n")


if __name__ == "__main__":
    main()
