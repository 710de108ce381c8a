"""Recorded rounds played on other cost curves: times plain of the policy, which begins without knowing machine and draft.

ROUNDS are files of `bench/pair.py --rounds`. The default is those in bench/rounds, greedy answers of SmolLM2-135M to our own
prompts: all of them with an earlier EAGLE-3 head (eagle3); 60, some to other prompts, with the head and companion that ship
(head); 32, drawn at temperature 0.8, with the same (head-t08); two of each kind in two file types with the draft and companion
that shipped before (bf16, q4_k_m); and as Q4_K_M with itself less one of its blocks and less eleven (good, poor; see stretch.py).
`--cost` is a draft step in steps of the target; a companion's is a tenth of it. `--parts` leaves out one part of the policy after
the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common import arguments, publish
from grid import KNOWN, Played, costs_of, parts
from measure.parts import PARTS, without
from measure.simulate import Answer, Player, fixed_speed, fresh_curve, load_rounds
from measure.speeds import geomean

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.goodput import GoodputPolicy
from pyspec.sampling.options import Draw

ROUNDS = Path(__file__).parent / "rounds"
ABOUT = """Each cell has what the mean and the least of `times plain` change by, in percent, over all files and curves;
the first line has both. Rounds were recorded at temperature 0 (greedy) and at 0.8 (files that end in -t08). The policy begins
without any knowledge of machine and draft and has lookup, all answers count. The second line changes nothing but the noise of
times: it is how much the measure scatters."""
WAYS: Mapping[str, tuple[Draw, bool, bool]] = {
    "greedy": ("greedy", False, False), "drawn": ("coupled", False, False), "with the companion": ("greedy", True, False),
    "copying": ("greedy", False, True),
}  # fmt: skip
"""How tokens were drawn, whether a companion may score, and whether only the sixth of answers counts that copies most."""


def times_plain(
    answers: Sequence[Answer], curve: str, cost: float, draw: Draw, companion: bool
) -> float:
    """Times plain over these answers."""
    costs, learned = costs_of(curve, cost, 0.1), Acceptance().under(draw)
    policy = GoodputPolicy(
        fresh_curve(costs, (cost, 0.1 * cost), 0, KNOWN[curve].card), learned, companion=companion
    )
    return Player(policy, costs).play(answers).speed / fixed_speed(answers, costs, 0)


def chosen(
    files: Mapping[str, Sequence[Answer]], draw: Draw, companion: bool, copying: bool
) -> list[Sequence[Answer]]:
    """The rounds whose tokens were drawn so and, for a companion, those that one scored."""
    found = [
        answers
        for name, answers in files.items()
        if name.endswith("-t08") == (draw == "coupled")
        and (not companion or any(c.agree for each in answers for c in each.models.values()))
    ]
    if not copying:
        return found
    most = (sorted(answers, key=_copied)[-max(1, len(answers) // 6) :] for answers in found)
    return [answers for answers in most if _copied(answers[0]) > 0]


def _copied(answer: Answer) -> float:
    """Tokens that lookup would have had right, summed over all places, per token of the answer."""
    return sum(chain.matched for chain in answer.lookups.values()) / answer.length


def main(words: Sequence[str] | None = None) -> None:
    """Print the page; with --out, also write it there."""
    how = {"curve": "Q4_K_M;BF16;GPU", "cost": 0.1, "parts": False}
    options = arguments(__doc__, words, "rounds*", out=None, **how)
    paths = map(Path, options.rounds or sorted(ROUNDS.glob("*.gz")))
    files = {path.stem: load_rounds(path) for path in paths}
    ways = {way: how for way, how in WAYS.items() if chosen(files, *how)}

    def play() -> Played:
        found = []
        for how in ways.values():
            cells = [(a, c) for a in chosen(files, *how) for c in options.curve.split(";")]
            speeds = [times_plain(*cell, options.cost, *how[:2]) for cell in cells]
            found.append((geomean(speeds), min(speeds)))
        return found

    def play_without(part: str) -> Played:
        with without(part):
            return play()

    title = "What the parts of the policy are worth on recorded rounds"
    found = parts(ways, PARTS if options.parts else (), play_without)
    publish("replay", words, options.out, title, ABOUT, found)


if __name__ == "__main__":
    main()
