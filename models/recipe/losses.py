"""What the student is taught: the target's choice, its best logits, its hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as f
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Weights of the loss's parts.

    `hard`: cross-entropy on the target's first choice; `soft`: KL from its kept probabilities;
    `state`: squared distance from the target's final state (as the student's head sees it).
    """

    hard: float = 0.5
    soft: float = 1.0
    state: float = 0.5


@dataclass
class Support:
    """The ids that a softmax runs over instead of all.

    `kept` (sorted): the best ids of every row and the common ones. `others`: a random sample of
    the rest, which stands for all of them: `weight` is the logarithm of how many each stands for.
    Without the sample nothing would push the logits of rare ids down, and with a fixed head some
    of them end up on top.
    """

    kept: Tensor
    others: Tensor
    weight: float


def support(ids: Tensor, common: Tensor, near: int, others: Tensor, vocab: int) -> Support:
    """The `near` best of every row of `ids`, `common`, and what of `others` is neither."""
    kept = torch.unique(torch.cat([ids[:, :near].reshape(-1), common]))
    place = torch.searchsorted(kept, others).clamp(max=len(kept) - 1)
    others = others[kept[place] != others]
    return Support(kept, others, math.log(max(1, vocab - len(kept)) / max(1, len(others))))


def distances(
    states: Tensor, head: Tensor, among: Support, ids: Tensor, logp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(hard, soft, agreement), each [rows], of student states [rows, width].

    `head` [vocab, width] is the tied embedding; `ids` and `logp` [rows, top] the target's best.
    Target ids that are not among the kept ones are dropped and the rest renormalised.
    """
    logits = f.linear(states, head[among.kept].to(states.dtype)).float()
    total, best = logits.logsumexp(-1), logits.max(-1)
    first = among.kept[best.indices]
    if len(among.others):
        rest = f.linear(states, head[among.others].to(states.dtype)).float()
        total = torch.logaddexp(total, rest.logsumexp(-1) + among.weight)
        first = torch.where(best.values >= rest.amax(-1), first, -1)
    place = torch.searchsorted(among.kept, ids).clamp(max=len(among.kept) - 1)
    inside = among.kept[place] == ids
    wanted = torch.softmax(logp.masked_fill(~inside, -1e4), -1)
    at = logits.gather(1, place) - total[:, None]
    log_wanted = wanted.clamp(min=1e-9).log()
    soft = (wanted * (log_wanted - at)).sum(-1)
    return -at[:, 0], soft, first == ids[:, 0]


def state_distance(states: Tensor, wanted: Tensor) -> Tensor:
    """Squared distance [rows] over the wanted state's own mean square."""
    difference = (states.float() - wanted).pow(2).mean(-1)
    return difference / wanted.pow(2).mean().clamp(min=1e-9)
