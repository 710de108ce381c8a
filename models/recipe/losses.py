"""What the student is taught: the target's choice, its best logits, its hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pyspec.models.recipe.net import Student
from pyspec.models.recipe.rows import Batch, Corpus
from torch import Tensor


class Lesson(Protocol):
    """What turns a batch into a loss."""

    def loss(self, batch: Batch, step: int, rollout: int) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows and the roll-out's steps, its parts as numbers)."""


def chosen_rows(batch: Batch, seed: int, step: int, prompt_share: float) -> NDArray[np.bool_]:
    """The answers' rows and a random share of the prompts', [sequences, positions]."""
    rng = np.random.default_rng((seed, step))
    return batch.answer | (batch.prompt & (rng.random(batch.prompt.shape) < prompt_share))


def tensor_of(values: NDArray[Any], device: torch.device) -> Tensor:
    """Ids as int64, everything else as float32."""
    kind = np.int64 if values.dtype.kind in "iu" else np.float32
    return torch.from_numpy(values.astype(kind)).to(device)


@dataclass(frozen=True)
class Weights:
    """Weights of the loss's parts.

    `hard`: cross-entropy on the target's first choice; `soft`: KL from its kept probabilities;
    `state`: squared distance from the target's final state (as the student's head sees it); `drift`, of an
    EAGLE-3 head: squared distance of its output from the state that a true feature would give at the next step.
    """

    hard: float = 0.5
    soft: float = 1.0
    state: float = 0.5
    drift: float = 0.5


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


@dataclass(frozen=True)
class Sampling:
    """Which ids a softmax runs over (see `Support`): `near` best of each row, `common` ones, `others`."""

    near: int = 8
    common: int = 2000
    others: int = 3000


class StudentLesson:
    """The loss of a `net.Student` with a fixed head that maps the target's states by `project`."""

    def __init__(
        self, student: Student, project: NDArray[np.float32], corpus: Corpus, weights: Weights,
        seed: int, prompt_share: float, sampling: Sampling,
    ) -> None:  # fmt: skip
        self.student, self.weights, self.seed = student, weights, seed
        self.prompt_share, self.sampling = prompt_share, sampling
        self.device = student.embedding.weight.device
        self.frozen = student.embedding.weight.detach().to(torch.bfloat16)
        self.project = torch.from_numpy(project).to(self.device)
        self.common = torch.from_numpy(common_ids(corpus, sampling.common)).to(self.device)
        self.chance = torch.Generator()

    def loss(self, batch: Batch, step: int, rollout: int) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows, its parts as numbers); it has no steps to roll out."""
        names = ("token", "ids", "logp", "state")
        rows = {name: tensor_of(batch.rows[name], self.device) for name in names}
        with torch.autocast(self.device.type, torch.bfloat16):
            states = self.student.states(rows["token"])
        mask = torch.from_numpy(chosen_rows(batch, self.seed, step, self.prompt_share))
        mask = mask.to(self.device)
        total, parts = self._row_loss(states[mask], rows, mask, step)
        parts = {f"{key}1": value for key, value in parts.items()}
        parts["loss"] = float(total.detach())
        return total, parts

    def _row_loss(
        self, states: Tensor, rows: dict[str, Tensor], mask: Tensor, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of the chosen rows, in pieces of 1024: each piece has its own small support."""
        w, vocab = self.weights, len(self.frozen)
        ids, logp, target = rows["ids"][mask], rows["logp"][mask], rows["state"][mask]
        total = torch.zeros((), device=self.device)
        sums = np.zeros(4)
        self.chance.manual_seed(self.seed * 1_000_003 + step)
        for begin in range(0, len(states), 1024):
            part = slice(begin, begin + 1024)
            others = torch.randint(vocab, (self.sampling.others,), generator=self.chance)
            others = others.to(self.device)
            kept = support(ids[part], self.common, self.sampling.near, others, vocab)
            hard, soft, agree = distances(
                states[part].to(torch.bfloat16), self.frozen, kept, ids[part], logp[part]
            )
            far = state_distance(states[part], target[part] @ self.project.T)
            total = total + (w.hard * hard + w.soft * soft + w.state * far).sum()
            sums += [float(x.detach().float().sum()) for x in (hard, soft, far, agree)]
        names = ("hard", "soft", "state", "agree")
        return total / len(states), dict(zip(names, sums / len(states), strict=True))


def common_ids(corpus: Corpus, count: int) -> NDArray[np.int64]:
    """The `count` ids that are most often among the target's best, in a sample of rows."""
    rows = corpus.recordings[0].rows
    sample = np.asarray(rows["ids"][:: max(1, len(rows) // 20000)], np.int64)
    seen = np.bincount(sample.reshape(-1), minlength=corpus.meta.n_vocab)
    return np.sort(np.argsort(-seen, kind="stable")[:count])
