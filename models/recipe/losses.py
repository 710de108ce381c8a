"""What the student is taught: the target's choice, its best logits, its hidden state."""

from __future__ import annotations

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


def support(ids: Tensor, common: Tensor, near: int) -> Tensor:
    """The ids that the softmax runs over: the `near` best of every row, and `common` ones.

    A softmax over all ids would cost more than the rest of the step; ids that neither the
    target considers anywhere in the batch nor its text often uses hardly change the sum.
    """
    return torch.unique(torch.cat([ids[:, :near].reshape(-1), common]))


def distances(
    states: Tensor, head: Tensor, kept: Tensor, ids: Tensor, logp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(hard, soft, agreement), each [rows], of student states [rows, width].

    `head` [vocab, width] is the tied embedding; `kept` the support (sorted); `ids` and `logp`
    [rows, top] the target's best. Target ids outside the support are dropped and the rest
    renormalised.
    """
    logits = f.linear(states, head[kept].to(states.dtype)).float()
    own = torch.log_softmax(logits, -1)
    place = torch.searchsorted(kept, ids).clamp(max=len(kept) - 1)
    inside = kept[place] == ids
    wanted = torch.softmax(logp.masked_fill(~inside, -1e4), -1)
    at = own.gather(1, place)
    log_wanted = wanted.clamp(min=1e-9).log()
    soft = (wanted * (log_wanted - at)).sum(-1)
    agree = kept[logits.argmax(-1)] == ids[:, 0]
    return -at[:, 0], soft, agree


def state_distance(states: Tensor, wanted: Tensor) -> Tensor:
    """Squared distance [rows] over the wanted state's own mean square."""
    difference = (states.float() - wanted).pow(2).mean(-1)
    return difference / wanted.pow(2).mean().clamp(min=1e-9)
