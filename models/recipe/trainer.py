"""The loop that trains a student: batches in, steps, checkpoints that a later run goes on from."""

from __future__ import annotations

import csv
import itertools
import math
import pickle
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor, nn

from models.recipe.rows import Batch, Corpus
from pyspec.errors import TrainingError

_SAVE_EVERY_S = 60.0


class Objective(Protocol):
    """What turns a batch into a loss."""

    def loss(self, batch: Batch, step: int, rollout: int) -> tuple[Tensor, dict[str, float]]:
        """(mean loss over the chosen rows and the roll-out's steps, its parts as numbers)."""


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss's parts.

    `hard`: cross-entropy on the target's first choice; `soft`: KL from its kept probabilities;
    `state`: squared distance from the target's final state (as the student's head sees it); `drift`, of an
    EAGLE-3 head: squared distance of its output from the state that a true feature would give at the next step.
    """

    hard: float = 0.5
    soft: float = 1.0
    state: float = 0.5
    drift: float = 0.5


@dataclass(frozen=True)
class SoftmaxIds:
    """Ids in the softmax of an independent student (see `student.Support`): `near` best of each row, `common` ones, `others`."""

    near: int = 8
    common: int = 2000
    others: int = 3000


@dataclass(frozen=True)
class TrainingPlan:
    """How to train.

    `rollout`: draft steps that an EAGLE-3 head is trained on; `prompt_share`: share of prompt rows in the loss; `joined`: share
    of the batches whose sequences follow each other in one context, so that what is far away is learned to be far away, as behind
    a long prompt.
    """

    steps: int = 2000
    tokens: int = 2048
    rate: float = 1e-3
    warmup: int = 50
    decay: float = 0.01
    longest: int = 1024
    rollout: int = 4
    prompt_share: float = 0.25
    joined: float = 0.0
    seed: int = 1
    weights: LossWeights = field(default_factory=LossWeights)
    softmax: SoftmaxIds = field(default_factory=SoftmaxIds)


class Trainer:
    """A student, its objective, its optimiser and its place in the corpus.

    `fixed` is kept in every checkpoint beside what is learned.
    """

    def __init__(
        self, student: nn.Module, objective: Objective, corpus: Corpus, plan: TrainingPlan, folder: Path,
        fixed: dict[str, Any],
    ) -> None:  # fmt: skip
        self.student, self.objective, self.corpus, self.plan = student, objective, corpus, plan
        self.folder, self.fixed = folder, fixed
        learned = [weight for weight in student.parameters() if weight.requires_grad]
        self.optimiser = torch.optim.AdamW(
            learned, plan.rate, betas=(0.9, 0.95), weight_decay=plan.decay, fused=True
        )
        self.step = self.epoch = self.place = 0
        self.stop_at: int | None = None  # end early after this step, as an interruption would
        self.curve: list[dict[str, float]] = []

    def progress(self) -> float:
        """How much of the plan is done, 0 to 1."""
        return min(1.0, self.step / max(1, self.plan.steps))

    def rate(self) -> float:
        """Learning rate at this step: warm-up, then a cosine down to a twentieth."""
        plan = self.plan
        if self.step < plan.warmup:
            return plan.rate * (self.step + 1) / plan.warmup
        return plan.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self.progress())))

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step; returns the loss and its parts. Raises `TrainingError` when it is NaN."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        loss, parts = self.objective.loss(batch, self.step, self._rollout_steps())
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

    def _rollout_steps(self) -> int:
        """All draft steps every fourth time, one fewer every other fourth time, else two.

        What is drafted first decides most of what is accepted, and costs a third of the full roll-out.
        """
        whole = self.plan.rollout
        return max(1, (whole, min(2, whole), whole - 1, min(2, whole))[self.step % 4])

    def save(self) -> None:
        """Replace the checkpoint in one move, and write the curve beside it."""
        state: dict[str, Any] = {
            "shape": _plain(self.student.shape.as_dict()),
            "student": {
                k: v for k, v in self.student.state_dict().items() if k not in _fixed(self.student)
            },
            "optimiser": _plain(self.optimiser.state_dict()),
            "at": _plain([self.step, self.epoch, self.place]),
            "curve": _plain(self.curve),
            "plan": _plain(asdict(self.plan)),
            **_plain(self.fixed),
            "target": str(self.corpus.meta.target_sha256),
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
        self.step, self.epoch, self.place = state["at"]
        self.curve = state["curve"]

    def _done(self) -> bool:
        return self.progress() >= 1.0 or self.step == self.stop_at

    def run(self, bar: Progress) -> None:
        """Train to the end of the plan, saving once a minute."""
        task = bar.add_task("training", total=1.0)
        saved = time.monotonic()
        while not self._done():
            self.corpus.refresh()
            batches = self.corpus.batches(
                self.plan.seed, self.epoch, self.plan.tokens, self.plan.joined
            )
            for batch in itertools.islice(batches, self.place, None):
                parts = self.learn(batch)
                self.place += 1
                self.curve.append({"step": self.step, "rate": self.rate(), **parts})
                bar.update(task, completed=self.progress(), description=_line(self.step, parts))
                if self._done():
                    break
                if time.monotonic() - saved > _SAVE_EVERY_S:
                    self.save()
                    saved = time.monotonic()
            else:
                self.epoch, self.place = self.epoch + 1, 0
        self.save()


def chosen_rows(batch: Batch, step: int, plan: TrainingPlan) -> NDArray[np.bool_]:
    """The answers' rows and a random share of the prompts', [sequences, positions]."""
    rng = np.random.default_rng((plan.seed, step))
    return batch.answer | (batch.prompt & (rng.random(batch.prompt.shape) < plan.prompt_share))


def tensor_of(values: NDArray[Any], device: torch.device) -> Tensor:
    """Ids as int64, everything else as float32."""
    kind = np.int64 if values.dtype.kind in "iu" else np.float32
    return torch.from_numpy(values.astype(kind)).to(device)


def state_distance(states: Tensor, wanted: Tensor) -> Tensor:
    """Squared distance [rows] over the wanted state's own mean square."""
    difference = (states.float() - wanted).pow(2).mean(-1)
    return difference / wanted.pow(2).mean().clamp(min=1e-9)


def _fixed(student: nn.Module) -> set[str]:
    """Names of the weights that are not learned."""
    return {name for name, weight in student.named_parameters() if not weight.requires_grad}


def _line(step: int, parts: dict[str, float]) -> str:
    return f"step {step} loss {parts['loss']:.3f} agreement {parts['agree1']:.3f}"


def _plain(value: Any) -> Any:
    """The same in Python's numbers and torch's tensors: a checkpoint is read without running what is in it."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A run's checkpoint; raises `TrainingError` when it is missing or damaged."""
    try:
        state = dict(torch.load(path, weights_only=True))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"{path} cannot be read", "train again into another folder") from error
    if "head" in state:
        head = state["head"].items()
        state["head"] = {k: v.numpy() if isinstance(v, Tensor) else v for k, v in head}
    return state


def write_curve(folder: Path, curve: list[dict[str, float]]) -> None:
    """`curve.csv` (one line a step) and `curve.png`."""
    if not curve:
        return
    with (folder / "curve.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list({key: None for row in curve for key in row}))
        table.writeheader()
        table.writerows(curve)
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        return  # the numbers are there; the picture needs the extra
    figure = Figure((7, 4))
    axes = figure.subplots()
    window = max(1, len(curve) // 50)
    for name in sorted({key for row in curve for key in row if key[:5] == "agree"}):
        steps, values = zip(*((r["step"], r[name]) for r in curve if name in r), strict=True)
        smooth = np.convolve(values, np.ones(window) / window, "valid")
        axes.plot(
            steps[len(steps) - len(smooth) :], smooth, label=f"agreement, draft step {name[5:]}"
        )
    axes.set_xlabel("step")
    axes.legend()
    figure.savefig(folder / "curve.png", dpi=120)
