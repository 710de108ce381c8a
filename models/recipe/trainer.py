"""The loop that trains a student: batches in, steps, checkpoints that a later run goes on from."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyspec.models.recipe import losses, start
from pyspec.models.recipe.corpus import Batch, Corpus
from pyspec.models.recipe.curve import write_curve
from pyspec.models.recipe.net import Student
from rich.progress import Progress
from torch import Tensor

from pyspec.errors import TrainingError


@dataclass(frozen=True)
class Plan:
    """How to train.

    `minutes`: when not 0, the run also ends after so long, and the learning rate falls with
    whichever of steps and time is further on; `rollout`: draft steps that a coupled student is trained on; `prompt_share`:
    share of prompt rows in the loss; `near`, `common`, `others`: see `losses.support`.
    """

    steps: int = 2000
    minutes: float = 0.0
    tokens: int = 2048
    rate: float = 1e-3
    warmup: int = 50
    decay: float = 0.01
    longest: int = 448
    rollout: int = 3
    prompt_share: float = 0.5
    near: int = 8
    common: int = 2000
    others: int = 3000
    seed: int = 1
    weights: losses.Weights = field(default_factory=losses.Weights)


class Trainer:
    """A student, its optimiser and its place in the corpus."""

    def __init__(
        self, student: Student, head: start.Head, corpus: Corpus, plan: Plan, folder: Path
    ) -> None:
        self.student, self.head, self.corpus, self.plan = student, head, corpus, plan
        self.folder = folder
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        student.to(self.device)
        self.frozen = student.embedding.weight.detach().to(torch.bfloat16)
        self.project = torch.from_numpy(head.project).to(self.device)
        self.common = torch.from_numpy(_common_ids(corpus, plan.common)).to(self.device)
        self.optimiser = torch.optim.AdamW(
            _groups(student), plan.rate, betas=(0.9, 0.95), weight_decay=plan.decay, fused=True
        )
        self.chance = torch.Generator()
        self.step = self.epoch = self.place = 0
        self.seconds = 0.0
        self.stop_at: int | None = None  # end early after this step, as an interruption would
        self.curve: list[dict[str, float]] = []

    def progress(self) -> float:
        """How much of the plan is done, 0 to 1."""
        by_time = self.seconds / (60 * self.plan.minutes) if self.plan.minutes else 0.0
        return min(1.0, max(self.step / max(1, self.plan.steps), by_time))

    def rate(self) -> float:
        """Learning rate at this step: warm-up, then a cosine down to a twentieth."""
        plan = self.plan
        if self.step < plan.warmup:
            return plan.rate * (self.step + 1) / plan.warmup
        return plan.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self.progress())))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step; returns the loss and its parts. Raises `TrainingError` when it is NaN."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate() * group["share"]
        loss, parts = self.loss(batch)
        if not math.isfinite(float(loss.detach())):
            raise TrainingError(
                f"the loss is not a number at step {self.step}",
                f"the last checkpoint is kept in {self.folder}; try a lower --rate",
            )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        learned = [p for g in self.optimiser.param_groups for p in g["params"]]
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        self.optimiser.step()
        self.step += 1
        return parts

    def loss(self, batch: Batch, train: bool = True) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows and the roll-out's steps, its parts as numbers)."""
        rows = {name: self._tensor(batch, name) for name in ("token", "ids", "logp", "state")}
        chosen = batch.answer.copy()
        if train:
            rng = np.random.default_rng((self.plan.seed, self.step))
            chosen |= batch.prompt & (rng.random(chosen.shape) < self.plan.prompt_share)
        with torch.autocast(self.device.type, torch.bfloat16):
            found = self._states(rows["token"], rows["state"])
        where = torch.from_numpy(chosen).to(self.device)
        total = torch.zeros((), device=self.device)
        parts: dict[str, float] = {}
        for number, states in enumerate(found, 1):
            mask = where.clone()
            mask[:, : number - 1] = False
            step_loss, step_parts = self._row_loss(states[mask], rows, mask)
            total = total + step_loss / len(found)
            parts.update({f"{key}{number}": value for key, value in step_parts.items()})
        parts["loss"] = float(total.detach())
        return total, parts

    def _states(self, tokens: Tensor, states: Tensor) -> list[Tensor]:
        if self.student.shape.target_width:
            found: list[Tensor] = self.student.rollout(tokens, states, self._rollout_steps())
            return found
        return [self.student.states(tokens)]

    def _rollout_steps(self) -> int:
        """All draft steps every fourth time, every second time in the later half, else the first.

        The first step decides most of what is accepted and costs a third of the full roll-out.
        """
        often = 2 if self.progress() > 0.5 else 4
        return 1 if self.step % often else self.plan.rollout

    def _row_loss(
        self, states: Tensor, rows: dict[str, Tensor], mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of the chosen rows, in pieces of 1024: each piece has its own small support."""
        w = self.plan.weights
        ids, logp, target = rows["ids"][mask], rows["logp"][mask], rows["state"][mask]
        total = torch.zeros((), device=self.device)
        sums = np.zeros(4)
        self.chance.manual_seed(self.plan.seed * 1_000_003 + self.step)
        for begin in range(0, len(states), 1024):
            part = slice(begin, begin + 1024)
            others = torch.randint(
                len(self.frozen), (self.plan.others,), generator=self.chance, device="cpu"
            ).to(self.device)
            kept = losses.support(ids[part], self.common, self.plan.near, others, len(self.frozen))
            hard, soft, agree = losses.distances(
                states[part].to(torch.bfloat16), self.frozen, kept, ids[part], logp[part]
            )
            far = losses.state_distance(states[part], target[part] @ self.project.T)
            total = total + (w.hard * hard + w.soft * soft + w.state * far).sum()
            sums += [float(x.detach().float().sum()) for x in (hard, soft, far, agree)]
        names = ("hard", "soft", "state", "agree")
        return total / len(states), dict(zip(names, sums / len(states), strict=True))

    def _tensor(self, batch: Batch, name: str) -> Tensor:
        kind = np.int64 if name in ("token", "ids") else np.float32
        return torch.from_numpy(batch.rows[name].astype(kind)).to(self.device)

    def save(self) -> None:
        """Replace the checkpoint in one move, and write the curve beside it."""
        state: dict[str, Any] = {
            "shape": self.student.shape.as_dict(),
            "student": {k: v for k, v in self.student.state_dict().items() if k[:9] != "embedding"},
            "optimiser": self.optimiser.state_dict(),
            "at": [self.step, self.epoch, self.place, self.seconds],
            "curve": self.curve,
            "plan": asdict(self.plan),
            "head": asdict(self.head),
            "target": self.corpus.meta.target_sha256,
        }
        try:
            torch.save(state, self.folder / "student.pt.new")
            (self.folder / "student.pt.new").replace(self.folder / "student.pt")
        except (OSError, RuntimeError) as error:
            raise TrainingError(
                f"the checkpoint cannot be written: {error}", "the one before it is kept"
            ) from error
        write_curve(self.folder, self.curve)

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Take another student's weights where names and sizes agree."""
        own = self.student.state_dict()
        fit = {k: v for k, v in weights.items() if k in own and v.shape == own[k].shape}
        self.student.load_state_dict(fit, strict=False)

    def resume(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint of `save`."""
        self.student.load_state_dict(state["student"], strict=False)
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.epoch, self.place, self.seconds = state["at"]
        self.curve = state["curve"]

    def _done(self) -> bool:
        return self.progress() >= 1.0 or self.step == self.stop_at

    def run(self, bar: Progress, every: float) -> None:
        """Train to the end of the plan, saving every `every` seconds."""
        task = bar.add_task("training", total=1.0)
        saved = now = time.monotonic()
        while not self._done():
            self.corpus.refresh()
            batches = self.corpus.batches(self.plan.seed, self.epoch, self.plan.tokens)
            for batch in itertools.islice(batches, self.place, None):
                parts = self.learn(batch)
                self.place += 1
                self.seconds, now = self.seconds + time.monotonic() - now, time.monotonic()
                self.curve.append({"step": self.step, "rate": self.rate(), **parts})
                bar.update(task, completed=self.progress(), description=_line(self.step, parts))
                if self._done():
                    break
                if now - saved > every:
                    self.save()
                    saved = now
            else:
                self.epoch, self.place = self.epoch + 1, 0
        self.save()


def _groups(student: Student) -> list[dict[str, Any]]:
    """What is learned, with each group's share of the learning rate.

    Embeddings are about a tenth as large as what flows between layers, so what is added to them
    moves a tenth as fast.
    """
    groups: dict[float, list[Any]] = {1.0: [], 0.1: []}
    for name, weight in student.named_parameters():
        if weight.requires_grad:
            groups[0.1 if name.startswith("from_") else 1.0].append(weight)
    return [{"params": part, "share": share} for share, part in groups.items() if part]


def _line(step: int, parts: dict[str, float]) -> str:
    return f"step {step} loss {parts['loss']:.3f} agreement {parts['agree1']:.3f}"


def _common_ids(corpus: Corpus, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The `count` ids that are most often among the target's best, in a sample of rows."""
    rows = corpus.recordings[0].rows
    sample = np.asarray(rows["ids"][:: max(1, len(rows) // 20000)], np.int64)
    seen = np.bincount(sample.reshape(-1), minlength=corpus.meta.n_vocab)
    return np.sort(np.argsort(-seen, kind="stable")[:count])
