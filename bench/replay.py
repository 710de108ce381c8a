"""Recorded rounds played on other cost curves: `auto`, with lookup, with the companion's score, and with a cascade.

    python bench/replay.py [ROUNDS ...] [--cost 0.1] [--companion-cost 0.1] [--width 1]

ROUNDS are files of `pyspec profile --rounds`; without any, those in bench/rounds: greedy answers of
SmolLM2-135M to our own prompts: all of them with the shipped EAGLE-3 head (eagle3), and two of each kind in two file types with
the draft and the companion that shipped before. `--cost` is a
draft step in steps of the target, `--companion-cost` a companion's step in steps of the draft. Speeds are against plain decoding,
without Python's own time; the first half of the answers is played first, and not counted.

Score: the companion looks at each draft and its view goes into the estimate, in every round (`always`) or where it pays
(`auto`). Cascade: the companion proposes m tokens, the draft checks them in one batch and adds its own, until it has as many as
the policy wants; m is the best by hindsight. The oracle has both drafters and drafts nothing that is not accepted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from grid import CURVES, TINY

from pyspec.measure.rounds import Answer, load_rounds
from pyspec.measure.simulate import Costs, Player, Recorded, Times, fixed_speed, oracle_speed
from pyspec.policy.cost import CostCurve
from pyspec.policy.goodput import GoodputPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = Path(__file__).parent / "rounds"


class Always(GoodputPolicy):
    """Lets the companion score every draft."""

    def _score(self, places: object) -> bool:
        return True


def costs_of(curve: str, cost: float, companion: float) -> Costs:
    """One row of the target in 10 ms."""
    side = Times(TINY, 10.0 * cost)
    return Costs(Times(CURVES[curve][0], 10.0), side, Times(TINY, 10.0 * cost * companion))


def play(
    answers: Sequence[Answer], costs: Costs, width: int, kind: type[GoodputPolicy] = GoodputPolicy, *,
    companion: bool = False, lookup: bool = False,
) -> float:  # fmt: skip
    """Tokens per ms in the second half of the answers."""
    tables = [[t(n) for n in range(65)] for t in costs]
    policy = kind(CostCurve.from_tables({0: tables[0]}, *tables[1:]), companion=companion)
    half = len(answers) // 2
    texts = [Recorded(a, lookup) for a in answers]
    Player(policy, costs).play(texts[:half], width)
    return Player(policy, costs, 1).play(texts[half:], width).speed


def cascade_share(answers: Sequence[Answer], companion: float) -> tuple[float, int, float]:
    """(cost of a drafted token in draft steps, m, share of the draft's tokens that the companion foretells)."""
    runs, agreed, seen = [], 0, 0
    for answer in answers:
        for chain in answer.model.values():
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


def row(name: str, answers: Sequence[Answer], args: argparse.Namespace, curve: str) -> str:
    """One line of the table."""
    costs = costs_of(curve, args.cost, args.companion_cost)
    half = [Recorded(a, with_lookup=False) for a in answers[len(answers) // 2 :]]
    plain = fixed_speed(half, costs, 0)
    fixed = max(fixed_speed(half, costs, k) for k in range(17)) if args.width == 1 else float("nan")
    share, _, _ = cascade_share(answers, args.companion_cost)
    looked = [Recorded(a) for a in answers[len(answers) // 2 :]]
    oracle = oracle_speed(looked, costs) if args.width == 1 else float("nan")
    speeds = [
        fixed,
        play(answers, costs, args.width),
        play(answers, costs, args.width, companion=True),
        play(answers, costs, args.width, Always, companion=True),
        play(answers, costs_of(curve, args.cost * share, 1.0), args.width),
        play(answers, costs, args.width, lookup=True),
    ]
    base = plain if args.width == 1 else play(answers, costs, args.width, _Plain)
    cells = [*(f"{s / base:.3f}" for s in speeds), f"{speeds[-1] / oracle:.3f}"]
    return f"| {name} | {curve} | " + " | ".join(cells) + " |"


class _Plain(GoodputPolicy):
    """Never drafts."""

    def _pays(self, place: object) -> bool:
        return False


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("rounds", nargs="*", type=Path)
    parser.add_argument("--curve", action="append", choices=list(CURVES))
    parser.add_argument("--cost", type=float, default=0.1)
    parser.add_argument("--companion-cost", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=1, help="sequences side by side")
    args = parser.parse_args(argv)
    print(
        "| rounds | curve | best fixed | auto | score, auto | score, always | cascade | auto + lookup | of the oracle |"
    )
    print("|" + " --- |" * 9)
    for path in args.rounds or sorted(ROUNDS.glob("*.npz")):
        answers = load_rounds(path)
        for curve in args.curve or ("Q4_K_M", "BF16", "GPU"):
            print(row(path.stem, answers, args, curve), flush=True)
        share, m, agreed = cascade_share(answers, args.companion_cost)
        print(
            f"| {path.stem} | | companion foretells {100 * agreed:.0f} %; a drafted token costs {share:.2f} steps at m = {m} |"
        )


if __name__ == "__main__":
    main()
