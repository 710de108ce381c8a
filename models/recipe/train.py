"""Step 2: train a student on a recording.

The run's folder holds `student.pt` (the checkpoint, replaced in one move), `curve.csv` and
`curve.png`. Running the same command again goes on from the checkpoint.
"""

from __future__ import annotations

import csv
import itertools
import math
import pickle
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from pyspec.models.recipe import losses, start
from pyspec.models.recipe.corpus import Batch, Corpus
from pyspec.models.recipe.gguf_io import Source
from pyspec.models.recipe.net import Shape, Student
from pyspec.models.recipe.rows import file_sha256, need_space
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
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


def quiet() -> Progress:
    """A progress bar that nobody sees."""
    return Progress(disable=True)


def _line(step: int, parts: dict[str, float]) -> str:
    return f"step {step} loss {parts['loss']:.3f} agreement {parts['agree1']:.3f}"


def _common_ids(corpus: Corpus, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The `count` ids that are most often among the target's best, in a sample of rows."""
    rows = corpus.recordings[0].rows
    sample = np.asarray(rows["ids"][:: max(1, len(rows) // 20000)], np.int64)
    seen = np.bincount(sample.reshape(-1), minlength=corpus.meta.n_vocab)
    return np.sort(np.argsort(-seen, kind="stable")[:count])


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


def answer_states(corpus: Corpus, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Up to `count` final states of rows that predict answers, for the head's factors."""
    found, have = [], 0
    for item in corpus.items:
        rows, prompt = corpus.sequence(item)
        found.append(rows["state"][prompt - 1 :].astype(np.float32))
        have += len(found[-1])
        if have >= count:
            break
    return np.concatenate(found)


def prepare(
    target: Path, corpus: Corpus, shape: dict[str, int], layers: list[int], coupled: bool,
    plan: Plan, folder: Path, begin: Path | None = None,
) -> Trainer:  # fmt: skip
    """A trainer at the folder's checkpoint, or at the start when there is none.

    `begin` is the folder of another run whose weights are taken where names and sizes agree, and
    whose head is taken whole: a coupled student learns soonest from a trained independent one.
    """
    if file_sha256(target) != corpus.meta.target_sha256:
        click.echo("note: the recording was written by another file of the target", err=True)
    source = Source(target)
    check_target(source, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, 200_000_000)
    checkpoint = folder / "student.pt"
    state = read_checkpoint(checkpoint) if checkpoint.exists() else None
    full = Shape(
        vocab=corpus.meta.n_vocab, **shape,
        rope_base=float(source.field("llama.rope.freq_base", 10000.0)),
        eps=float(source.field("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        target_width=corpus.meta.n_embd if coupled else 0,
    )  # fmt: skip
    if state is not None and state["shape"] != full.as_dict():
        raise TrainingError(f"{checkpoint} has other sizes", "give another --out")
    other = read_checkpoint(begin / "student.pt") if begin and state is None else None
    known = state or other
    head = (
        start.Head(**known["head"])
        if known is not None
        else start.make_head(source, answer_states(corpus, 120_000), shape["width"])
    )
    trainer = Trainer(
        start.make_student(source, head, full, layers, plan.seed), head, corpus, plan, folder
    )
    if other is not None:
        trainer.take_weights(other["student"])
    if state is not None:
        trainer.resume(state)
    return trainer


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A run's checkpoint; raises `TrainingError` when it is missing or damaged."""
    try:
        return dict(torch.load(path, weights_only=False))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"{path} cannot be read", "train again into another folder") from error


def check_target(source: Source, corpus: Corpus) -> None:
    """Raise `TrainingError` unless the recording's sizes are the target's."""
    vocab, width = source.tensor(source.output_name).shape
    if (vocab, width) != (corpus.meta.n_vocab, corpus.meta.n_embd):
        raise TrainingError(
            f"the recording has {corpus.meta.n_vocab} tokens and width {corpus.meta.n_embd}, "
            f"{source.path} has {vocab} and {width}",
            "give the target that the text was written with",
        )


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True, multiple=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of this run.")
@click.option("--width", default=256, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--heads", default=4, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
@click.option("--head", default=64, show_default=True, help="Width of one attention head.")
@click.option("--ff", default=768, show_default=True)
@click.option("--from-layers", default="", help="Layers of the target to start from, as 0,29.")
@click.option("--start-run", type=click.Path(path_type=Path), help="Run whose weights to take.")
@click.option("--coupled", is_flag=True, help="Feed the target's hidden states.")
@click.option("--rollout", default=3, show_default=True)
@click.option("--steps", default=2000, show_default=True)
@click.option("--minutes", default=0.0, help="End after so long, whatever --steps says.")
@click.option("--tokens", default=2048, show_default=True, help="Tokens a step.")
@click.option("--rate", default=1e-3, show_default=True)
@click.option("--state-weight", default=0.5, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--save-every", default=60.0, show_default=True, help="Seconds.")
def main(
    target: Path, data: tuple[Path, ...], out: Path, width: int, layers: int, heads: int,
    kv_heads: int, head: int, ff: int, from_layers: str, start_run: Path | None, coupled: bool, rollout: int,
    steps: int, minutes: float, tokens: int, rate: float, state_weight: float, seed: int, threads: int, save_every: float,
) -> None:  # fmt: skip
    """Train a student of TARGET on the recordings in DATA."""
    torch.set_num_threads(threads)
    weights = losses.Weights(state=state_weight)
    plan = Plan(
        steps=steps, minutes=minutes, tokens=tokens, rate=rate, rollout=rollout, seed=seed,
        weights=weights,
    )  # fmt: skip
    shape = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads}
    shape |= {"head": head, "ff": ff}
    copied = [int(number) for number in from_layers.split(",") if number]
    try:
        corpus = Corpus(list(data), plan.longest)
        trainer = prepare(target, corpus, shape, copied, coupled, plan, out, start_run)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            trainer.run(bar, save_every)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
