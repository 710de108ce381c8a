"""Recorded rounds played on other cost curves: `auto`, with lookup, and with the companion's score.

ROUNDS are files of `bench/pair.py --rounds`. The default is those in bench/rounds, greedy answers of SmolLM2-135M to our own
prompts: all of them with an earlier EAGLE-3 head (eagle3); 60, some to prompts of bench/firsts, with the head and companion that
ship and what lookup proposes beside the head (head); two of each kind in two file types with the draft and companion that shipped
before (bf16, q4_k_m); and as Q4_K_M with itself less one of its blocks and less eleven (good, poor; see stretch.py). `--cost` is
a draft step in steps of the target, `--companion-cost` a companion's step in steps of the draft. Speeds are relative to plain
decoding, without Python's own time; the first half of the answers is played first and not counted.

Score: the companion reads each draft and its opinion goes into the estimate, in every round (`always`) or where it pays (`auto`);
rounds recorded without a companion cannot tell. `--parts` leaves out one part of the policy after the other: it begins without
any knowledge of machine and draft and has lookup, all answers count, and the least of `times plain` is over files and curves. The
informed policy (see grid.py) knows what can be known of the model's drafts; the oracle has both drafters and drafts nothing that
is not accepted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import arguments
from grid import KNOWN, changed, costs_of, informed_speed
from measure.oracle import oracle_speed
from measure.parts import PARTS, without
from measure.report import table
from measure.simulate import Answer, Costs, Player, fixed_speed, load_rounds
from measure.speeds import geomean
from msgspec.structs import replace

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy

ROUNDS = Path(__file__).parent / "rounds"
HEAD = ("rounds", "curve", "best fixed", "auto", "informed", "score, auto", "score, always", "auto + lookup",
        "of the oracle")  # fmt: skip


class Always(GoodputPolicy):
    """A policy whose companion scores every draft."""

    def _score(self, places: object) -> bool:
        return True


def play(
    answers: Sequence[Answer], costs: Costs, kind: type[GoodputPolicy] = GoodputPolicy, *,
    companion: bool = False, lookup: bool = False,
) -> float:  # fmt: skip
    """Tokens per ms in the second half of the answers."""
    greedy = Acceptance().under("greedy", relaxing=False)
    policy = kind(costs.curve(), greedy, companion=companion)
    half = len(answers) // 2
    texts = answers if lookup else _by_model(answers)
    Player(policy, costs).play(texts[:half])
    return Player(policy, costs, 1).play(texts[half:]).speed


def _by_model(answers: Sequence[Answer]) -> list[Answer]:
    return [replace(answer, lookups={}) for answer in answers]


def row(name: str, answers: Sequence[Answer], options: Namespace, curve: str) -> list[str]:
    """One line of the table."""
    costs = costs_of(curve, options.cost, options.companion_cost)
    half = answers[len(answers) // 2 :]
    fixed = [fixed_speed(half, costs, k) for k in range(17)]
    scores: list[float] = []
    if _scored(answers):
        scores = [play(answers, costs, kind, companion=True) for kind in (GoodputPolicy, Always)]
    looked = play(answers, costs, lookup=True)
    informed = informed_speed(_by_model(half), costs)
    speeds = [max(fixed), play(answers, costs), informed, *(scores or [None, None]), looked]
    shown = ["-" if speed is None else f"{speed / fixed[0]:.3f}" for speed in speeds]
    return [name, curve, *shown, f"{looked / oracle_speed(half, costs):.3f}"]


def from_the_start(
    answers: Sequence[Answer], curve: str, cost: float, coupled: bool, companion: bool
) -> float:
    """Times plain of a policy that begins without knowledge, over all answers."""
    costs = costs_of(curve, cost, 0.1)
    learned = Acceptance().under("coupled" if coupled else "greedy", relaxing=False)
    prior = CostCurve.prior(KNOWN[curve][1], 10.0, cost, 0.1 * cost)
    policy = GoodputPolicy(prior, learned, companion=companion)
    return Player(policy, costs).play(answers).speed / fixed_speed(answers, costs, 0)


def parts(files: Mapping[str, Sequence[Answer]], curves: Sequence[str], cost: float) -> str:
    """A line for each part of the policy that is left out."""
    ways = {"greedy": (False, False), "drawn": (True, False), "with the companion": (False, True)}
    whole: dict[str, tuple[float, float]] = {}
    rows = []
    for part in ("", *PARTS):
        cells = []
        for way, (coupled, companion) in ways.items():
            with without((part,) if part else ()):
                speeds = [
                    from_the_start(answers, curve, cost, coupled, companion)
                    for name, answers in files.items()
                    if name.endswith("-t08") == coupled and (not companion or _scored(answers))
                    for curve in curves
                ]
            found = geomean(speeds), min(speeds)
            before = whole.setdefault(way, found)
            cells.append(changed(found, before) if part else "{:.3f}, {:.3f}".format(*found))
        rows.append([part or "(all there)", *cells])
    return table(("without", *ways), rows)


def _scored(answers: Sequence[Answer]) -> bool:
    return any(chain.agree for answer in answers for chain in answer.models.values())


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    how = {"curve": "Q4_K_M;BF16;GPU", "cost": 0.1, "companion_cost": 0.1, "parts": False}
    options = arguments(__doc__, words, "rounds*", **how)
    paths = map(Path, options.rounds or sorted(ROUNDS.glob("*.gz")))
    files = {path.stem: load_rounds(path) for path in paths}
    curves = options.curve.split(";")
    if options.parts:
        print(parts(files, curves, options.cost))
        return
    rows = [row(*file, options, curve) for file in files.items() for curve in curves]
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
