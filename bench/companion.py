"""What more information about a draft is worth: a companion's opinion, and perfect knowledge, in addition to the draft's own p.

    python bench/companion.py [--out bench/results/companion/README.md]

It uses the answers of bench/rounds that a companion has scored: with the small draft and companion that shipped before the
head (bf16, q4_k_m), and with the EAGLE-3 head and companion that ship (head). First, the log-loss of predicted acceptance in
the second half of the answers, by logistic regressions fitted on the first half. Second, tokens per ms of `auto` that may ask
the companion, or must, on the curves of grid.py, by the cost of a companion's row in rows of the target. Speeds are relative to
`auto` without a companion, all without lookup. Several sequences are assumed to go in step, so a decode of k rows for each
costs what the curve gives for that many times k rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from common import arguments, publish
from grid import costs_of, informed_speed
from measure.report import table
from measure.simulate import Answer, Costs, Player, Times, load_rounds
from msgspec.structs import replace
from replay import ROUNDS

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.goodput import GoodputPolicy

FILES = ("bf16", "q4_k_m", "head")
CURVES = ("BF16", "Q4_K_M", "GPU", "7B on CPU")
SEQUENCES = (1, 8, 32)
COSTS = (0.0, 0.005, 0.02, 0.08)
DRAFT_COST = 0.1
"""A draft's step, in steps of the target."""


class Always(GoodputPolicy):
    """A policy whose companion scores every draft."""

    def _score(self, places: object) -> bool:
        return True


def _logit(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return float(np.log(p / (1 - p)))


def _own(p: float, i: int) -> list[float]:
    """Features from the draft itself."""
    return [1.0, _logit(p), _logit(p) ** 2 / 10, float(i)]


def rows_of(answers: Iterable[Answer]) -> tuple[np.ndarray, np.ndarray]:
    """Features of each drafted token that a strict round judged, the draft's own first, and whether it was accepted."""
    x, y = [], []
    for answer in answers:
        for chain in answer.models.values():
            if not chain.agree:
                continue
            for i in range(chain.seen):
                own = _own(chain.p[i], i)
                more = [chain.s[i], chain.a[i], _logit(chain.pc[i]), float(chain.agree[i])]
                x.append([*own, *more, chain.s[i] * own[1], float(chain.agree[i]) * own[1]])
                y.append(i < chain.matched)
    return np.array(x), np.array(y, dtype=float)


def fitted(x: np.ndarray, y: np.ndarray, steps: int = 30, ridge: float = 1e-3) -> np.ndarray:
    """Weights of a logistic regression, by Newton's method."""
    w = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -30, 30)))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + ridge * np.eye(len(w))
        w += np.linalg.solve(hessian, x.T @ (y - p) - ridge * w)
    return w


def log_loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Nats a token."""
    p = np.clip(1 / (1 + np.exp(-(x @ w))), 1e-6, 1 - 1e-6)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def knowledge(name: str, answers: Sequence[Answer]) -> list[str]:
    """One line: nats a token by what is known, on the answers not used for fitting."""
    half = len(answers) // 2
    (x, y), (x_new, y_new) = rows_of(answers[:half]), rows_of(answers[half:])
    rate = float(y.mean())
    base = float(-np.mean(y_new * np.log(rate) + (1 - y_new) * np.log(1 - rate)))
    known = [log_loss(fitted(x[:, :n], y), x_new[:, :n], y_new) for n in (4, x.shape[1])]
    return [name, str(len(y_new)), *(f"{nats:.3f}" for nats in (base, *known, 0.0))]


def costs_for(curve: str, sequences: int, companion: float) -> Costs:
    """Costs for one of several sequences that go in step. companion: its row in rows of the target."""
    alone = costs_of(curve, DRAFT_COST, max(companion, 1e-6) / DRAFT_COST)
    return Costs(
        *(Times({k: max(1e-9, time(k * sequences)) for k in range(1, 65)}) for time in alone[:3])
    )


def play(
    answers: Sequence[Answer], costs: Costs, kind: type[GoodputPolicy] = GoodputPolicy, companion: bool = False
) -> float:  # fmt: skip
    """Tokens per ms in the second half of the answers."""
    learned = Acceptance().under("greedy")
    policy, half = kind(costs.curve(), learned, companion=companion), len(answers) // 2
    Player(policy, costs).play(answers[:half])
    return Player(policy, costs, 1).play(answers[half:]).speed


def speeds(name: str, answers: Sequence[Answer]) -> list[list[str]]:
    """Lines: tokens per ms over `auto` without a companion, by curve and sequences, at each cost of a companion, and informed."""
    texts, out = [replace(answer, lookups={}) for answer in answers], []
    for curve in CURVES:
        for n in SEQUENCES:
            costs = [costs_for(curve, n, share) for share in COSTS]
            alone = play(texts, costs[0])
            informed = informed_speed(texts[len(texts) // 2 :], costs[0]) / alone
            for how, kind in (("may", GoodputPolicy), ("has to", Always)):
                judged = [play(texts, each, kind, companion=True) / alone for each in costs]
                shown = (f"{gain:.3f}" for gain in (*judged, informed))
                out.append([name, curve, str(n), how, *shown])
    return out


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables; with --out, also write their page."""
    options = arguments(__doc__, words, out=None)
    recorded = {name: load_rounds(ROUNDS / f"{name}.gz") for name in FILES}
    known = [knowledge(name, answers) for name, answers in recorded.items()]
    fast = [row for name, answers in recorded.items() for row in speeds(name, answers)]
    best = max(float(row[4]) for row in fast)
    pays = any(float(cell) >= 1.03 for row in fast for cell in row[4:-1])
    said = (
        "It pays 3 % somewhere in this table." if pays else
        f"It pays 3 % nowhere in this table: a companion that costs nothing brings at most {100 * (best - 1):+.1f} %."
    )  # fmt: skip
    heads = ["nothing", "the draft's p", "and the companion's S, A, p, agreement", "everything"]
    shares = [f"companion at {100 * share:g} % of a row" for share in COSTS]
    publish(
        "companion", words, options.out, "What a companion is worth",
        (__doc__ or "").rpartition("\n\n")[2].strip(), f"**{said}**",
        f"Log-loss of acceptance, nats a drafted token, by what is known:\n\n{table(['rounds', 'tokens', *heads], known)}",
        f"Tokens a ms over `auto` without a companion, a draft's step at {DRAFT_COST:g} of the target's:\n\n"
        f"{table(['rounds', 'curve', 'sequences', 'asks it', *shares, 'informed'], fast)}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
