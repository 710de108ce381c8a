"""First answers of a process, replayed: a policy that starts with what is known then, and is discarded after one answer.

ROUNDS are files of `pyspec profile --rounds`. The default is those of bench/firsts: answers of SmolLM2-135M to everyday prompts,
at temperature 0 and, as the names say, .8, where drafts sampled with the target's noise. `--curve` names curves of grid.py, or
`here`: BF16 on two AMD cores. The policy knows the curve, or with `--fresh` begins with what is assumed for the type. `--cost` is
a draft's step in steps of the target. `--asked` is how many tokens were asked for, which is all that the policy knows of an
answer's length. `--half 1` or `2` takes every other answer: what is tuned on one half is reported on the other.

Acceptance begins with the prior that ships with the head. With `--start nothing` it begins as for a draft without a prior. With
`--start kept` it does too, but each answer then begins with what the answer before it learned, as processes of `generate` do.
Several beginnings may be named. Speeds are relative to plain decoding, without Python's own time. The informed policy (see
grid.py) knows what can be known of the head's tokens and drafts nothing else; the oracle knows what will be accepted. With
`--out FOLDER` the table and its page are stored there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean

from common import Replayed, arguments, command_line, keep, page_of
from grid import CURVES, informed_speed
from measure.oracle import oracle_speed
from measure.records import commit
from measure.report import table
from measure.rounds import load_rounds
from msgspec.structs import replace

from pyspec.engine.profiles import read_prior
from pyspec.policy.acceptance import Acceptance
from pyspec.policy.cost import CostCurve
from pyspec.policy.lengths import Auto
from pyspec.policy.policies import Policies
from pyspec.policy.shapes import SHAPES
from pyspec.profiling.simulate import Answer, Costs, Player, Times, fixed_speed
from pyspec.sampling.noise import Draw

ROUNDS = Path(__file__).parent / "firsts"
HEAD_FILE = Path(__file__).parents[1] / "models" / "smollm2-eagle3.gguf"
HERE = {1: 1.0, 2: 1.34, 3: 1.42, 4: 1.81, 5: 1.91, 6: 2.16, 7: 2.48, 8: 2.68, 9: 2.8, 12: 3.48, 16: 4.4, 64: 14.0}  # fmt: skip
KNOWN = {**CURVES, "here": (HERE, "BF16")}
OPTIONS = {
    "curve": "here,BF16,Q4_1,Q4_K_M,7B on CPU,GPU", "cost": 0.1, "asked": 512, "half": 0, "fresh": False, "start": "prior",
    "out": None,
}  # fmt: skip
HEAD = ("rounds", "curve", "best fixed", "auto", "lowest", "under .97", "informed", "oracle")


class Firsts(Replayed):
    """Speeds of first answers."""

    def page(self) -> str:
        """The title, a description and the table."""
        return page_of("First answers, replayed", __doc__, self.made, table(HEAD, self.rows))


def beginning(start: str) -> Acceptance:
    """The prior that ships with the head, or none."""
    found = read_prior(HEAD_FILE) if start == "prior" else None
    return found.restore(found.draft, "") if found else Acceptance()


def play(
    answers: Sequence[Answer], costs: Costs, curve: Callable[[], CostCurve], draw: Draw, start: str
) -> list[float]:
    """Tokens per ms of each answer, as if each had its own process."""
    learned, speeds = beginning(start), []
    for i, answer in enumerate(answers):
        process = Policies(Auto(), curve(), learned, companion=False, draw=draw)
        speeds.append(Player(process.of(None), costs, i).play([answer]).speed)
        learned = (start == "kept" and process.taught()) or learned
    return speeds


def row(
    name: str, answers: Sequence[Answer], curve: str, start: str, options: Namespace
) -> list[str]:
    """One line of the table."""
    (points, kind), cost = KNOWN[curve], options.cost
    costs = Costs(Times(points, 10.0), Times(SHAPES["head"], 10.0 * cost), Times({1: 1.0}))

    def assumed() -> CostCurve:
        return CostCurve.prior(kind, 10.0, cost / 2.0, cost / 2.0, head=True)

    plain, draw = fixed_speed(answers, costs, 0), "coupled" if "0.8" in name else "greedy"
    known = assumed if options.fresh else costs.curve
    ratios = [speed / plain for speed in play(answers, costs, known, draw, start)]
    fixed = max(fixed_speed(answers, costs, k) for k in range(1, 17))
    informed, oracle = informed_speed(answers, costs), oracle_speed(answers, costs)
    shown = [fixed / plain, mean(ratios), min(ratios)]
    under = f"{sum(ratio < 0.97 for ratio in ratios)} of {len(ratios)}"
    rest = [f"{informed / plain:.3f}", f"{oracle / plain:.3f}"]
    named = name if start == "prior" else f"{name}, {start}"
    return [named, curve, *(f"{each:.3f}" for each in shown), under, *rest]


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, "rounds*", **OPTIONS)
    rows = []
    for path in map(Path, options.rounds or sorted(ROUNDS.glob("*.gz"))):
        answers = [replace(answer, asked=options.asked) for answer in load_rounds(path)]
        chosen = answers[options.half - 1 :: 2] if options.half else answers
        starts, curves = options.start.split(","), options.curve.split(",")
        rows += [row(path.stem, chosen, *each, options) for each in product(curves, starts)]
    print(table(HEAD, rows))
    if options.out:
        command = command_line("firsts", words)
        keep(Firsts(command, commit(), rows), options.out / "firsts.json")


if __name__ == "__main__":
    main()
