"""Step 1: let the target write the text that its draft will learn from.

Many sequences decode together, one row each, because a CPU as well as a GPU is several times
faster at 100 rows in one batch than at 1. Every row, of prompts and of answers, is recorded with
the target's best logits and its final hidden state (see `rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from models.recipe import prompts
from models.recipe.rows import Meta, RecordingWriter, need_space
from models.recipe.target import Row, Target, best
from models.recipe.text import Answer, known
from pyspec.errors import PyspecError, TrainingError
from pyspec.machine.files import file_sha256


@dataclass(frozen=True)
class Options:
    """How to write: lengths in tokens, `top` logits kept a row, `warm` = share written at T 0.7.

    `layers`: layers of the target whose inputs are recorded too, for an EAGLE-3 head; `known`: answers by the
    number of their prompt, which are computed again instead of being written.
    """

    slots: int = 128
    answer: int = 160
    longest_prompt: int = 256
    top: int = 64
    warm: float = 0.2
    temperature: float = 0.7
    seed: int = 1
    layers: tuple[int, ...] = ()
    known: dict[int, Answer] = field(default_factory=dict)


@dataclass
class Live:
    """One sequence that is being written."""

    slot: int
    tokens: list[int]
    source: int
    temperature: float
    prefix: int
    rows: list[NDArray[Any]] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Positions that the context holds, the shared prefix included."""
        return self.prefix + len(self.rows)


class AnswerWriter:
    """Keeps the slots of a target full and hands finished sequences to a recording."""

    def __init__(self, target: Target, writer: RecordingWriter, options: Options) -> None:
        self.target, self.writer, self.options = target, writer, options
        self.dtype = writer.dtype
        self.rng = np.random.default_rng((options.seed, len(writer.sequences)))
        self.prefix = self._shared_prefix()
        self.free = list(range(1, target.slots))
        self.live: list[Live] = []
        self._start_prefix()

    def _shared_prefix(self) -> list[int]:
        """Tokens that every chat begins with, found from two chats that share nothing else."""
        one, two = (self.target.chat_tokens(text) for text in ("Aa", "9 zz"))
        same = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
        return one[:same]

    def _start_prefix(self) -> None:
        """Decode the prefix once into slot 0, and record it as sequence 0 of a new recording."""
        need = len(self.prefix) + self.options.longest_prompt + self.options.answer
        if need > self.target.depth:
            raise TrainingError(
                f"all chats begin with the same {len(self.prefix)} tokens, which leaves no room",
                "ask for a shorter --longest-prompt",
            )
        if not self.prefix:
            return
        live = Live(0, self.prefix, -1, 0.0, 0)
        self._decode([(live, token) for token in self.prefix])
        if self.writer.rows == 0:
            self._finish(live, live.rows[-1]["ids"][0].item(), len(self.prefix), ended=False)

    def _decode(self, work: list[tuple[Live, int]]) -> None:
        """Decode (sequence, token) pairs in pieces of n_batch; each sequence gets its rows."""
        ahead: dict[int, int] = {}
        rows: list[Row] = []
        for live, token in work:
            step = ahead.get(live.slot, 0)
            rows.append((token, live.position + step, live.slot))
            ahead[live.slot] = step + 1
        for start in range(0, len(rows), self.target.n_batch):
            piece = rows[start : start + self.target.n_batch]
            self._record(work[start : start + self.target.n_batch], piece)

    def _record(self, work: list[tuple[Live, int]], rows: list[Row]) -> None:
        filled = self._without_gaps(rows)
        logits, states = self.target.decode(filled)
        features = self.target.features(len(filled))
        if len(filled) > len(rows):
            mine = {row[2] for row in rows}
            keep = [i for i, row in enumerate(filled) if row[2] in mine]
            logits, states, features = logits[keep], states[keep], features[keep]
        made = np.zeros(len(rows), self.dtype)
        for start in range(0, len(rows), 128):  # pieces that stay in the cache
            part = slice(start, start + 128)
            made["ids"][part], made["logp"][part], made["lse"][part] = best(
                logits[part], self.options.top
            )
        if not np.isfinite(made["lse"]).all():
            raise TrainingError("the target gave a logit that is not finite", "check the file")
        made["features"] = features
        made["state"], made["token"] = states, [token for _, token in work]
        for (live, _), row in zip(work, made, strict=True):
            live.rows.append(row)

    def _without_gaps(self, rows: list[Row]) -> list[Row]:
        """The rows, with a discarded row for each free slot between them.

        llama.cpp computes only sequences with consecutive numbers together, so one gap would
        split the batch in two.
        """
        if len(rows) < 2 or len({row[2] for row in rows}) < len(rows):
            return rows  # prompts: several rows of one sequence, computed one by one anyway
        used = {row[2]: row for row in rows}
        idle = [s for s in range(rows[0][2], rows[-1][2]) if s not in used]
        for slot in idle:
            self.target.clear(slot)
        return sorted(rows + [(rows[0][0], 0, s) for s in idle], key=lambda row: row[2])

    def admit(self, queue: Iterator[tuple[int, str]]) -> bool:
        """Fill the free slots with new prompts, all their rows in one go; False when none is left.

        Returns early after a known answer, which leaves its slot free.
        """
        work, found = [], None
        while self.free:
            found = self._next_prompt(queue)
            if found is None:
                break
            source, tokens = found
            slot = self.free.pop(0)
            self.target.start_from(slot, 0)
            answer = self.options.known.get(source)
            if answer is not None:
                self._compute(
                    Live(slot, tokens, source, answer.temperature, len(self.prefix)), answer
                )
                continue
            live = Live(slot, tokens, source, self._temperature(), len(self.prefix))
            self.live.append(live)
            work += [(live, token) for token in tokens]
        if work:
            self._decode(work)
        return found is not None

    def _compute(self, live: Live, answer: Answer) -> None:
        """Record a prompt and its known answer in one go."""
        self.live.append(live)
        self._decode([(live, token) for token in [*live.tokens, *answer.ids[:-1].tolist()]])
        self._finish(live, int(answer.ids[-1]), len(live.tokens), answer.ended)

    def _temperature(self) -> float:
        return self.options.temperature if self.rng.random() < self.options.warm else 0.0

    def _next_prompt(self, queue: Iterator[tuple[int, str]]) -> tuple[int, list[int]] | None:
        """The next prompt that fits, without the shared prefix."""
        for source, text in queue:
            tokens = self.target.chat_tokens(text)[len(self.prefix) :]
            answer = self.options.known.get(source)
            room = self.options.longest_prompt + self.options.answer
            fits = answer is None or len(tokens) + len(answer.ids) <= room
            if fits and 0 < len(tokens) <= self.options.longest_prompt:
                return source, tokens
        return None

    def step(self) -> int:
        """Choose a token for every live sequence, retire those at their end, decode the rest."""
        work = []
        for live in list(self.live):
            token = self._choose(live)
            written = len(live.rows) - len(live.tokens) + 1
            ended = self.target.ends(token)
            if ended or written >= self.options.answer:
                self._finish(live, token, len(live.tokens), ended)
            else:
                work.append((live, token))
        if work:
            self._decode(sorted(work, key=lambda pair: pair[0].slot))
        return len(work)

    def _choose(self, live: Live) -> int:
        """Greedy, or a draw from the kept logits at the sequence's temperature."""
        row = live.rows[-1]
        if not live.temperature:
            return int(row["ids"][0])
        weight = np.exp(row["logp"].astype(np.float64) / live.temperature)
        return int(self.rng.choice(row["ids"], p=weight / weight.sum()))

    def _finish(self, live: Live, last: int, prompt: int, ended: bool) -> None:
        rows = np.stack(live.rows)
        rows["next"][:-1], rows["next"][-1] = rows["token"][1:], last
        self.writer.append(rows, prompt, live.source, live.temperature, ended)
        if live in self.live:
            self.live.remove(live)
            self.free = sorted([*self.free, live.slot])
        else:
            live.rows = []

    def run(self, queue: Iterator[tuple[int, str]], tokens: int | None, bar: Progress) -> None:
        """Write until the recording holds `tokens` rows or the prompts end."""
        task = bar.add_task("writing", total=tokens, completed=self.writer.rows)
        few = max(1, self.target.slots // 16)  # admitting in groups keeps the batches large
        while tokens is None or self.writer.rows < tokens:
            more = len(self.free) >= few and self.admit(queue)
            if self.live:
                self.step()
            elif not more:
                break
            bar.update(task, completed=self.writer.rows)


def write(
    target_path: Path, folder: Path, queue: list[tuple[int, str]], tokens: int | None,
    options: Options, threads: int, gpu: bool = False,
) -> int:  # fmt: skip
    """Write (or go on writing) a recording of about `tokens` rows (None: until the prompts end); returns the rows it holds.

    The prompts already used are read from the recording, so an interrupted run goes on with those
    that were not finished.
    """
    depth = -(-(options.longest_prompt + options.answer + 64) // 256) * 256
    target = Target(target_path, options.slots + 1, depth, threads, gpu=gpu, layers=options.layers)
    meta = Meta(
        file_sha256(target_path), target.n_embd, target.n_vocab, options.top, options.layers
    )
    writer = RecordingWriter(folder, meta)
    try:
        if tokens is not None:
            size = max(0, tokens - writer.rows) * writer.dtype.itemsize
            click.echo(f"{folder}: {writer.rows} rows there, {size / 1e9:.2f} GB more", err=True)
            need_space(folder, size)
        done = {int(s) for s in writer.sequences["source"]}
        left = iter([item for item in queue if item[0] not in done])
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            AnswerWriter(target, writer, options).run(left, tokens, bar)
    finally:
        writer.close()
        target.close()
    return writer.rows


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True, help="GGUF to imitate.")
@click.option("--prompts", "prompt_file", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Recording to make.")
@click.option("--tokens", default=1_000_000, show_default=True, help="Rows to stop at.")
@click.option("--exclude", type=click.Path(path_type=Path), help="Bench file to keep out.")
@click.option("--slots", default=128, show_default=True, help="Sequences written together.")
@click.option("--answer", default=160, show_default=True, help="Longest answer.")
@click.option("--longest-prompt", default=256, show_default=True)
@click.option("--warm", default=0.2, show_default=True, help="Share written at temperature 0.7.")
@click.option("--seed", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option(
    "--part",
    default="1/1",
    show_default=True,
    help="Which share of the prompts, as i/n: n processes of one thread beat one of n threads "
    "on a machine that others use too.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Shard of answers to compute first.",
)
@click.option("--layers", default="", help="Layers whose inputs to record, as 10,20,29.")
@click.option("--top", default=64, show_default=True, help="Logits kept a row.")
@click.option("--gpu", is_flag=True, help="Offload the target.")
def main(
    target: Path, prompt_file: Path, out: Path, tokens: int, exclude: Path | None, slots: int,
    answer: int, longest_prompt: int, warm: float, seed: int, threads: int, part: str,
    text: tuple[Path, ...], layers: str, top: int, gpu: bool,
) -> None:  # fmt: skip
    """Let TARGET write text on the prompts, with its logits and hidden states."""
    try:
        first, step = (int(number) for number in part.split("/"))
        queue = prompts.load(prompt_file, exclude, seed)[first - 1 :: step]
        answers = known(text, prompt_file, seed)
        queue.sort(key=lambda item: item[0] not in answers)
        watched = tuple(int(number) for number in layers.split(",") if number)
        options = Options(
            slots, answer, longest_prompt, top, warm, seed=seed, layers=watched, known=answers
        )
        rows = write(target, out, queue, tokens, options, threads, gpu)
    except PyspecError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {rows} rows", err=True)


if __name__ == "__main__":
    main()
