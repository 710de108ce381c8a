"""Replay recorded rounds under any cost curve and any policy, and compare goodput.

    python bench/replay.py ROUNDS.jsonl [--curve NAME ...] [--sequences B]
    python bench/replay.py --synthetic 1 [--answers 8] [--write FILE]
    python bench/replay.py ROUNDS.jsonl --profile PROFILE.json

Records are per position of an answer (see pyspec/measure/rounds.py), so a round that accepts m tokens
goes on at position + m + 1 whatever policy plays. Every policy plays all answers, in the order
given, with one state throughout. The table shows goodput against plain decoding by category, the
geometric mean, and the share of the oracle's goodput over all. Python's own time is not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from replay_policies import Costs, Oracle, Ours, Player, Published, Simple, profile_bins
from replay_synthetic import synthetic

from pyspec.measure.rounds import Answer, Header, group, read_answers, write_rounds
from pyspec.policy.cost import CostCurve, expand, shape
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.learned import Learned
from pyspec.policy.lengths import Companion
from pyspec.policy.profile import Prior, Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIXED = (1, 2, 3, 4, 5, 6, 7, 8, 16)
ALL = "all"  # key of the totals; with several sequences only they mean anything
_ROWS = 320  # rows of a replayed curve: draft catch-up and wide batches stay inside


@dataclass
class Place:
    """One sequence of the batch; see replay_policies.Seat."""

    answer: Answer
    t: int = 0
    draft_behind: int = 0
    companion_behind: int = 0


def load_costs(entry: dict[str, Any], tiny: dict[str, float]) -> Costs:
    """Times of a named curve of replay_curves.json."""
    points = entry.get("points") or shape(entry["shape"])
    one = float(entry["one_ms"])

    def times(unit: float, by_rows: dict[Any, float]) -> list[float]:
        return [unit * t for t in expand({int(n): t for n, t in by_rows.items()}, _ROWS)]

    return Costs(
        times(one, dict(points)),
        times(one * entry["draft"], tiny),
        times(one * entry["companion"], tiny),
    )


def profile_costs(path: Path) -> Costs:
    """Times of a saved profile, at its smallest context depth."""
    curve, _ = msgspec.json.decode(path.read_bytes(), type=Profile).policy_parts()
    return Costs(curve.target.table(), curve.draft.table(), curve.companion.table())


def replay(
    player: Player, answers: Sequence[Answer], width: int, prompt: int = 64
) -> dict[str, tuple[int, float]]:
    """{category: (tokens, ms)}; a round's time is shared equally by its sequences.

    Draft and companion have `prompt` tokens to read before their first use in an answer.
    """
    waiting = list(answers)
    seats: list[Place] = []
    totals: dict[str, tuple[int, float]] = {}
    while waiting or seats:
        while waiting and len(seats) < width:
            answer = waiting.pop(0)
            seats.append(Place(answer, 0, prompt, prompt))
        done = player.play(seats)
        for seat, accepted in zip(seats, done.accepted, strict=False):
            step = min(accepted + 1, seat.answer.length - seat.t)
            seat.t += step
            tokens, ms = totals.get(seat.answer.category, (0, 0.0))
            totals[seat.answer.category] = (tokens + step, ms + done.ms / len(seats))
            tokens, ms = totals.get(ALL, (0, 0.0))
            totals[ALL] = (tokens + step, ms + done.ms / len(seats))
        seats = [seat for seat in seats if seat.t < seat.answer.length]
    return totals


def players(
    costs: Costs, answers: Sequence[Answer], known: bool, prior: Prior | None = None
) -> list[Callable[[], Player]]:
    """Everything that is compared; `known` gives our policies the true curve as a profile."""

    def curve() -> CostCurve:
        if known:
            return CostCurve.from_tables(
                {0: costs.target[:65]}, costs.draft[:65], costs.companion[:65]
            )
        share = costs.draft[1] / costs.target[1], costs.companion[1] / costs.target[1]
        return CostCurve("Q4_1", 10.0, *share)

    def learned() -> Learned:
        return Learned.restore(prior.learned) if prior is not None else Learned()

    bins = profile_bins(answers[: max(1, len(answers) // 10)])
    has_lookup = any(a.lookup for a in answers)
    make: list[Callable[[], Player]] = [lambda: Simple(costs, 0)]
    make += [lambda k=k: Simple(costs, k) for k in FIXED]  # type: ignore[misc]
    make += [lambda p=p: Simple(costs, 16, p) for p in (0.5, 0.75, 0.9)]  # type: ignore[misc]
    make += [
        lambda: Published(costs, bins),
        lambda: Ours(
            "ours: companion", costs, Companion().policy(curve(), learned(), companion=True)
        ),
        lambda: Ours("ours: auto, no companion", costs, GoodputPolicy(curve(), learned())),
        lambda: Ours("ours: auto", costs, GoodputPolicy(curve(), learned(), companion=True)),
    ]
    if has_lookup:
        make.append(
            lambda: Ours(
                "ours: auto + lookup",
                costs,
                GoodputPolicy(curve(), learned(), companion=True),
                lookup=True,
            )
        )
    make.append(lambda: Oracle(costs))
    if has_lookup:
        make.append(lambda: Oracle(costs, lookup=True))
    return make


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    return exp(sum(log(v) for v in values) / len(values))


def speeds(
    results: dict[str, dict[str, tuple[int, float]]], categories: Sequence[str]
) -> dict[str, list[float]]:
    """{policy: goodput against plain by category, then over all}; best fixed per category too."""
    plain = results["plain"]

    def against(name: str) -> list[float]:
        got = results[name]
        return [got[c][0] / got[c][1] * plain[c][1] / plain[c][0] for c in (*categories, ALL)]

    out = {name: against(name) for name in results}
    fixed = [out[name] for name in out if name.startswith("fixed") or name == "plain"]
    best = [max(column) for column in zip(*fixed, strict=False)]
    ordered: dict[str, list[float]] = {}
    for name, row in out.items():
        if name.startswith("SV"):
            ordered["best fixed per category"] = best
        ordered[name] = row
    return ordered


def table(title: str, rows: dict[str, list[float]], categories: Sequence[str]) -> str:
    """A Markdown table of goodput against plain."""
    oracle = rows["oracle"][-1]
    lines = [
        f"### {title}",
        "",
        "| policy | " + " | ".join(categories) + " | all | geo. mean | worst | share of oracle |",
        "|" + " --- |" * (len(categories) + 5),
    ]
    for name, row in rows.items():
        mean = geomean(row[:-1])
        cells = " | ".join(f"{v:.2f}" for v in row)
        top = rows["oracle with lookup"][-1] if name.endswith("lookup") else oracle
        share = row[-1] / top
        lines.append(f"| {name} | {cells} | {mean:.3f} | {min(row[:-1]):.3f} | {share:.2f} |")
    return "\n".join(lines) + "\n"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("rounds", nargs="?", type=Path, help="recorded rounds (JSON lines)")
    parser.add_argument("--synthetic", type=int, metavar="SEED", help="generate rounds instead")
    parser.add_argument("--answers", type=int, default=8, help="synthetic answers a category")
    parser.add_argument("--write", type=Path, help="save the synthetic rounds to this file")
    parser.add_argument("--curve", action="append", help="a name in replay_curves.json, or all")
    parser.add_argument("--profile", type=Path, help="take the cost curve from this profile")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one batch")
    parser.add_argument("--prompt", type=int, default=64, help="tokens a draft must read first")
    parser.add_argument("--prior", type=Path, help="what ours knows of the draft at first")
    parser.add_argument("--learn", action="store_true", help="ours starts from the prior curve")
    return parser.parse_args(argv)


def load_answers(args: argparse.Namespace) -> list[Answer]:
    """Recorded answers, or synthetic ones (written out if asked)."""
    if args.synthetic is None:
        if args.rounds is None:
            sys.exit("give a file of rounds or --synthetic SEED")
        try:
            with args.rounds.open("rb") as lines:
                return read_answers(lines)
        except (OSError, ValueError) as error:
            sys.exit(f"{args.rounds}: {error}")
    chains = list(synthetic(args.synthetic, args.answers))
    if args.write:
        write_rounds(args.write, Header(1, "synthetic", "synthetic", "synthetic"), chains)
    return group(chains)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one table for each cost curve."""
    args = parse(argv)
    answers = load_answers(args)
    data = json.loads((Path(__file__).parent / "replay_curves.json").read_text())
    named = data["curves"]
    wanted = args.curve or ["cpu-q4_1", "cpu-q4_k_m", "cuda-34b-q8_0", "metal-q8_0"]
    if args.profile:
        costs = {"profile": profile_costs(args.profile)}
    else:
        names = list(named) if "all" in wanted else wanted
        if missing := [n for n in names if n not in named]:
            sys.exit(f"no curve {missing[0]!r}; there are: {', '.join(named)}")
        costs = {n: load_costs(named[n], data["draft_points"]) for n in names}
    categories = sorted({a.category for a in answers})
    prior = msgspec.json.decode(args.prior.read_bytes(), type=Prior) if args.prior else None
    for name, curve in costs.items():
        results = {}
        for make in players(curve, answers, not args.learn, prior):
            player = make()
            results[player.name] = replay(player, answers, args.sequences, args.prompt)
        print(
            table(f"{name}, {args.sequences} sequence(s)", speeds(results, categories), categories)
        )


if __name__ == "__main__":
    main()
