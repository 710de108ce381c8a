"""Recorded rounds played on other cost curves: `auto`, with lookup, and with the companion's score.

ROUNDS are files of `bench/pair.py --rounds`. The default is those in bench/rounds, greedy answers of SmolLM2-135M to our own
prompts: all of them with an earlier EAGLE-3 head (eagle3); 60, some to prompts of bench/firsts, with the head and companion that
ship and what lookup proposes beside the head (head); 32, drawn at temperature 0.8, with the same (head-t08); two of each kind in
two file types with the draft and companion that shipped before (bf16, q4_k_m); and as Q4_K_M with itself less one of its blocks
and less eleven (good, poor; see stretch.py). `--cost` is a draft step in steps of the target, `--companion-cost` a companion's
step in steps of the draft. Speeds are relative to plain decoding, without Python's own time; the first half of the answers is
played first and not counted.

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

from common import arguments, command_line
from grid import KNOWN, changed, costs_of, informed_speed
from measure.oracle import oracle_speed
from measure.parts import PARTS, without
from measure.records import commit
from measure.report import code_of, table
from measure.simulate import Answer, Costs, Player, fixed_speed, load_rounds
from measure.speeds import geomean
from msgspec.structs import replace

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.sampling.options import Draw

ROUNDS = Path(__file__).parent / "rounds"
HEAD = ("rounds", "curve", "best fixed", "auto", "informed", "score, auto", "score, always", "auto + lookup",
        "of the oracle")  # fmt: skip


class Always(GoodputPolicy):
    """A policy whose companion scores every draft."""

    def _score(self, places: object) -> bool:
        return True


ABOUT_PARTS = """Each cell has what the mean and the least of `times plain` change by, in percent, over all files and curves;
the first line has both. Rounds were recorded at temperature 0 (greedy) and at 0.8 (files that end in -t08). The policy begins
without any knowledge of machine and draft and has lookup, all answers count. The second line changes nothing but the noise of
times: it is how much the measure scatters."""


def play(
    answers: Sequence[Answer], costs: Costs, kind: type[GoodputPolicy] = GoodputPolicy, *,
    companion: bool = False, lookup: bool = False, draw: Draw = "greedy",
) -> float:  # fmt: skip
    """Tokens per ms in the second half of the answers."""
    learned = Acceptance().under(draw, relaxing=False)
    policy = kind(costs.curve(), learned, companion=companion)
    half = len(answers) // 2
    texts = answers if lookup else _by_model(answers)
    Player(policy, costs).play(texts[:half])
    return Player(policy, costs, 1).play(texts[half:]).speed


def _by_model(answers: Sequence[Answer]) -> list[Answer]:
    return [replace(answer, lookups={}) for answer in answers]


def row(name: str, answers: Sequence[Answer], options: Namespace, curve: str) -> list[str]:
    """One line of the table."""
    costs = costs_of(curve, options.cost, options.companion_cost)
    half, draw = answers[len(answers) // 2 :], _draw(name)
    fixed = [fixed_speed(half, costs, k) for k in range(17)]
    scores: list[float] = []
    if _scored(answers):
        kinds = (GoodputPolicy, Always)
        scores = [play(answers, costs, kind, companion=True, draw=draw) for kind in kinds]
    looked = play(answers, costs, lookup=True, draw=draw)
    informed = informed_speed(_by_model(half), costs)
    speeds = [
        max(fixed),
        play(answers, costs, draw=draw),
        informed,
        *(scores or [None, None]),
        looked,
    ]
    shown = ["-" if speed is None else f"{speed / fixed[0]:.3f}" for speed in speeds]
    return [name, curve, *shown, f"{looked / oracle_speed(half, costs):.3f}"]


def from_the_start(
    answers: Sequence[Answer], curve: str, cost: float, draw: Draw, companion: bool
) -> float:
    """Times plain of a policy that begins without knowledge, over all answers."""
    costs, learned = costs_of(curve, cost, 0.1), Acceptance().under(draw, relaxing=False)
    prior = CostCurve.prior(KNOWN[curve][1], 10.0, cost, 0.1 * cost)
    policy = GoodputPolicy(prior, learned, companion=companion)
    return Player(policy, costs).play(answers).speed / fixed_speed(answers, costs, 0)


WAYS: Mapping[str, tuple[Draw, bool]] = {
    "greedy": ("greedy", False), "drawn": ("coupled", False), "with the companion": ("greedy", True),
}  # fmt: skip
"""How tokens were drawn, and whether a companion may score."""


def parts(files: Mapping[str, Sequence[Answer]], curves: Sequence[str], cost: float) -> str:
    """A line for each part of the policy that is left out."""
    whole = {way: _lowest(files, curves, cost, *how) for way, how in WAYS.items()}
    rows = [["(all there)", *("{:.3f}, {:.3f}".format(*found) for found in whole.values())]]
    for part in PARTS:
        with without((part,)):
            found = {way: _lowest(files, curves, cost, *how) for way, how in WAYS.items()}
        rows.append([part, *(changed(found[way], whole[way]) for way in WAYS)])
    return table(("without", *WAYS), rows)


def _lowest(
    files: Mapping[str, Sequence[Answer]], curves: Sequence[str], cost: float, draw: Draw, companion: bool
) -> tuple[float, float]:  # fmt: skip
    """The mean and the least of times plain."""
    speeds = [
        from_the_start(answers, curve, cost, draw, companion)
        for name, answers in files.items()
        if _draw(name) == draw and (not companion or _scored(answers))
        for curve in curves
    ]
    return geomean(speeds), min(speeds)


def _draw(name: str) -> Draw:
    return "coupled" if name.endswith("-t08") else "greedy"


def _scored(answers: Sequence[Answer]) -> bool:
    return any(chain.agree for answer in answers for chain in answer.models.values())


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    how = {"curve": "Q4_K_M;BF16;GPU", "cost": 0.1, "companion_cost": 0.1, "parts": False}
    options = arguments(__doc__, words, "rounds*", out=None, **how)
    paths = map(Path, options.rounds or sorted(ROUNDS.glob("*.gz")))
    files = {path.stem: load_rounds(path) for path in paths}
    curves = options.curve.split(";")
    if options.parts:
        found = parts(files, curves, options.cost)
        print(found)
        if options.out:
            options.out.write_text(
                "# What the parts of the policy are worth on recorded rounds\n\n"
                f"Made by `{command_line('replay', words)}`{code_of(commit())}.\n\n{ABOUT_PARTS}\n\n{found}\n"
            )
        return
    rows = [row(*file, options, curve) for file in files.items() for curve in curves]
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
