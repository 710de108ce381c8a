"""The length policy on pairs unlike the one it was made on: synthetic texts on several cost curves.

    python bench/grid.py [--seeds 3] [--jobs 2] [--curve NAME ...] [--even] [--without PART ...] [--out FOLDER]

Each cell is one acceptance (0.3 to 0.95) and one draft cost (0.05 to 0.4 of a target step): 12 answers of 200 tokens, prompts of
100 tokens that the draft has to read first, times with 3 % noise. The policy (`auto`) is set against plain decoding and
against the best fixed length 0 to 16, chosen by hindsight with the same rounds. Fresh: a prior curve by file type, nothing
known of the draft. Profiled: the true curve, and acceptance as learned on other texts of the same kind. `--even`: every
token has the same chance and the draft's probability says nothing. The oracle knows what will be accepted before it drafts.
Python's own time is not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from hashlib import sha256
from itertools import product
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspec.measure.records import published
from pyspec.measure.simulate import Costs, Player, Synthetic, Times, fixed_speed, oracle_speed
from pyspec.policy.acceptance import Learned
from pyspec.policy.cost import SHAPES, CostCurve
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.switch import UseSwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ACCEPTANCES = (0.3, 0.5, 0.7, 0.85, 0.95)
DRAFT_COSTS = (0.05, 0.1, 0.2, 0.4)
ANSWERS, TOKENS, PROMPT = 12, 200, 100
TINY = {1: 1.0, 2: 1.4, 4: 1.9, 8: 2.8, 16: 4.6, 64: 15.0}
"""Rows of a small model, times one row."""

CURVES: Mapping[str, tuple[Mapping[int, float], str]] = {
    # points of the truth, and the name under which a fresh policy finds its prior
    "Q4_1": (SHAPES["Q4_1"], "Q4_1"),
    "Q4_K_M": (SHAPES["Q4_K_M"], "Q4_K_M"),
    "BF16": (SHAPES["BF16"], "BF16"),
    "GPU": ({1: 1.0, 16: 1.15, 64: 1.6}, "cuda"),
    "7B on CPU": ({1: 1.0, 2: 1.07, 4: 1.2, 8: 1.6, 16: 2.8, 64: 10.0}, "Q4_K_M"),
    "unknown type": (SHAPES["Q4_1"], ""),
}


class Cell(NamedTuple):
    """One run."""

    curve: str
    acceptance: float
    cost: float
    seed: int
    known: bool
    even: bool = False
    without: tuple[str, ...] = ()
    answers: int = ANSWERS
    mixed: float = 0.0


class Result(NamedTuple):
    """Speed of the policy against the best fixed length, plain decoding and the oracle; and which length was best."""

    best: float
    plain: float
    oracle: float
    length: int


def costs_of(cell: Cell) -> Costs:
    """The truth of a cell, one row of the target in 10 ms."""
    points, _ = CURVES[cell.curve]
    side = Times(TINY, 10.0 * cell.cost)
    return Costs(Times(points, 10.0), side, side)


@lru_cache(maxsize=64)
def texts_of(
    acceptance: float, seed: int, even: bool, n: int = ANSWERS, mixed: float = 0.0
) -> list[Synthetic]:
    """Texts of a cell's kind."""
    rng = random.Random(f"{acceptance} {seed}")  # noqa: S311 - reproducible, not secret
    kind = {"spread": 0.0, "error": 0.3} if even else {}
    return [
        Synthetic(rng, _about(acceptance, mixed, rng), TOKENS, PROMPT, **kind) for _ in range(n)
    ]


def _about(acceptance: float, mixed: float, rng: random.Random) -> float:
    """A text's own acceptance: its log-odds lie around the cell's with a standard deviation of `mixed`."""
    if not mixed:
        return acceptance
    return 1.0 / (1.0 + (1.0 / acceptance - 1.0) * exp(rng.gauss(0.0, mixed)))


def policy_of(cell: Cell) -> GoodputPolicy:
    """The policy as it starts."""
    costs = costs_of(cell)
    curve = CostCurve(CURVES[cell.curve][1], 10.0, cell.cost, cell.cost)
    learned = Learned()
    if cell.known:
        tables = [[t(n) for n in range(65)] for t in costs]
        learned = _taught(cell, costs, CostCurve.from_tables({0: tables[0]}, *tables[1:]))
        curve = CostCurve.from_tables({0: tables[0]}, *tables[1:])
    policy = GoodputPolicy(curve, learned)
    for part in cell.without:
        PARTS[part](policy)
    return policy


def _taught(cell: Cell, costs: Costs, curve: CostCurve) -> Learned:
    """What a profile knows of the draft: four other answers, drafted throughout."""
    policy = GoodputPolicy(curve, auto=False)
    Player(policy, costs).play(
        texts_of(cell.acceptance, 1000 + cell.seed, cell.even, 4, cell.mixed)
    )
    return policy.learned


class _Greedy(GoodputPolicy):
    """Drafts on while the next token pays by itself, taking it for as good as the mean of those before."""

    def _refresh(self) -> Any:
        tables = super()._refresh()
        price, rows = self._price, self._rows
        later = self.learned.calibration.nexts()[1] @ self.learned.calibration.table
        floors = [
            price * (rows[g + 2] - rows[g + 1] + tables.step) / max(0.01, later) for g in range(15)
        ]
        return tables._replace(floors=[*floors, 1.1])


def _without_table(policy: GoodputPolicy) -> None:
    policy.learned.calibration.update = lambda *_: None  # type: ignore[method-assign]


def _always(policy: GoodputPolicy) -> None:
    policy._auto = False  # noqa: SLF001 - an ablation reaches in


def _recast(kind: type[GoodputPolicy]) -> Callable[[GoodputPolicy], None]:
    def act(policy: GoodputPolicy) -> None:
        policy.__class__ = kind

    return act


def _switches(kind: type[UseSwitch]) -> Callable[[GoodputPolicy], None]:
    def act(policy: GoodputPolicy) -> None:
        policy._drafting = defaultdict(kind)  # noqa: SLF001 - as above

    return act


class _Untried(UseSwitch):
    """Makes no trials."""

    def __init__(self) -> None:
        super().__init__()
        self._credit = -1e9


class _Unpromising(UseSwitch):
    """Takes one text for as good as those before."""

    def on(self, seq: int, *about: float) -> bool:
        self._trial.setdefault(seq, 0)
        return super().on(seq, *about)


def _hopeless(policy: GoodputPolicy) -> None:
    policy.curve.target.hope = 1.0


PARTS: Mapping[str, Callable[[GoodputPolicy], None]] = {
    "switch": _always,
    "trials": _switches(_Untried),
    "floors": _recast(_Greedy),
    "hope": _hopeless,
    "promise": _switches(_Unpromising),
    "table": _without_table,
}
"""What can be left out, to see what it is worth."""


def run(cell: Cell) -> Result:
    """Play one cell."""
    texts = texts_of(cell.acceptance, cell.seed, cell.even, cell.answers, cell.mixed)
    speed = Player(policy_of(cell), costs_of(cell), cell.seed).play(texts).speed
    *fixed, oracle = rivals(cell._replace(known=False, without=()))
    return Result(speed / max(fixed), speed / fixed[0], speed / oracle, fixed.index(max(fixed)))


@lru_cache(maxsize=512)
def rivals(cell: Cell) -> list[float]:
    """Tokens per ms of the fixed lengths 0 to 16, and of lengths by hindsight."""
    texts = texts_of(cell.acceptance, cell.seed, cell.even, cell.answers, cell.mixed)
    costs = costs_of(cell)
    return [*(fixed_speed(texts, costs, k) for k in range(17)), oracle_speed(texts, costs)]


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    return exp(sum(map(log, values)) / len(values))


def report(found: Mapping[Cell, Result]) -> str:
    """A Markdown table, a line for each curve and start."""
    lines = [
        "| curve | start | geometric mean of the best | worst cell | cells under 0.95 | worst run of plain | of the oracle |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for curve, known in product(CURVES, (False, True)):
        mine = {c: r for c, r in found.items() if (c.curve, c.known) == (curve, known)}
        if not mine:
            continue
        by_cell: dict[tuple[float, float], list[float]] = {}
        for c, r in mine.items():
            by_cell.setdefault((c.acceptance, c.cost), []).append(r.best)
        means = {key: geomean(values) for key, values in by_cell.items()}
        worst = min(means, key=lambda key: means[key])
        lines.append(
            f"| {curve} | {'profiled' if known else 'fresh'} | {geomean([r.best for r in mine.values()]):.3f} "
            f"| {means[worst]:.3f} ({worst[0]:g}, {worst[1]:g}) | {sum(m < 0.95 for m in means.values())} "
            f"| {min(r.plain for r in mine.values()):.3f} | {geomean([r.oracle for r in mine.values()]):.3f} |"
        )
    return "\n".join(lines) + "\n"


class Kept:
    """Results in a folder: `cells.json` holds those of the code as it is now, and `README.md` the table."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.found: dict[Cell, Result] = {}
        self._file = folder / "cells.json" if folder is not None else None
        if self._file is not None and self._file.exists():
            kept = json.loads(self._file.read_text())
            if kept["code"] == code():
                for cell, result in kept["cells"]:
                    self.found[Cell(*cell[:6], tuple(cell[6]), *cell[7:])] = Result(*result)

    def save(self) -> None:
        """After every few cells, so that a run that was stopped goes on."""
        if self._file is not None and self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            rows = [json.dumps([c, [round(x, 4) for x in r]]) for c, r in self.found.items()]
            joined = ",\n".join(rows)
            self._file.write_text(f'{{"code": "{code()}", "cells": [\n{joined}\n]}}\n')

    def page(self, made_by: str) -> None:
        """The page of all that is kept."""
        if self._folder is not None:
            about = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
            text = f"# The length policy on synthetic texts\n\nMade by `{made_by}`.\n\n{about}\n\n"
            (self._folder / "README.md").write_text(text + report(self.found))


@lru_cache(maxsize=1)
def code() -> str:
    """What the results follow from: the policy, the simulator and the truth of the cells, whatever their docstrings say."""
    here = Path(__file__)
    files = [
        *sorted((here.parents[1] / "pyspec/policy").glob("*.py")),
        here.parents[1] / "pyspec/measure/simulate.py",
        here,
    ]
    trees = [ast.parse(path.read_text()) for path in files]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    return sha256("".join(map(ast.dump, trees)).encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--curve", action="append", choices=list(CURVES))
    parser.add_argument("--acceptance", type=float, action="append")
    parser.add_argument("--cost", type=float, action="append")
    parser.add_argument("--answers", type=int, default=ANSWERS)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--without", action="append", default=[], choices=list(PARTS))
    parser.add_argument(
        "--mixed", type=float, default=0.0, help="how much the texts of a cell differ"
    )
    parser.add_argument("--out", type=Path, help="folder of results to keep, and to go on with")
    args = parser.parse_args(argv)
    cells = [
        Cell(curve, a, cost, seed, known, args.even, tuple(args.without), args.answers, args.mixed)
        for a, seed in product(args.acceptance or ACCEPTANCES, range(args.seeds))
        for curve in args.curve or CURVES
        for cost, known in product(args.cost or DRAFT_COSTS, (False, True))
    ]
    kept = Kept(args.out)
    todo = [cell for cell in cells if cell not in kept.found]
    with ProcessPoolExecutor(args.jobs) as pool:
        for n, (cell, result) in enumerate(
            zip(todo, pool.map(run, todo, chunksize=8), strict=True), 1
        ):
            kept.found[cell] = result
            if n % 40 == 0 or n == len(todo):
                kept.save()
    kept.page(published("python bench/grid.py", argv if argv is not None else sys.argv[1:]))
    print(report({cell: kept.found[cell] for cell in cells}))


if __name__ == "__main__":
    main()
