"""The text that a target wrote, small enough to keep: its answers as token ids, without its states.

A shard is one xz stream: a line of JSON (format, vocabulary, the prompts file's sha256 and the seed of its
mixture, the number of answers), then, little-endian, source i64 [n], length u32 [n], temperature f32 [n],
ended u8 [n] and the ids u16 [sum of lengths]. Prompts are not kept, only their numbers in `prompts.load`:
whoever has the prompts file gets the same sequences, and the write step computes their states again.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from models.recipe.rows import Corpus
from pyspec.errors import TrainingError
from pyspec.machine.files import file_sha256

FORMAT = 1
HEADS = (("source", "<i8"), ("length", "<u4"), ("temperature", "<f4"), ("ended", "u1"))


@dataclass(frozen=True)
class Answer:
    """One answer: the number of its prompt, its ids (the closing one included), how it was written."""

    source: int
    ids: NDArray[np.uint16]
    temperature: float
    ended: bool


@dataclass(frozen=True)
class Origin:
    """What an answer's number refers to, and whose ids they are."""

    prompts_sha256: str
    seed: int
    n_vocab: int


def save(path: Path, origin: Origin, answers: list[Answer]) -> None:
    """Write a shard; raises `TrainingError` when the ids need more than 16 bits."""
    if origin.n_vocab > 1 << 16:
        raise TrainingError(f"{origin.n_vocab} ids do not fit in 16 bits", "keep the recording")
    columns = {
        "source": [answer.source for answer in answers],
        "length": [len(answer.ids) for answer in answers],
        "temperature": [answer.temperature for answer in answers],
        "ended": [answer.ended for answer in answers],
    }
    head = {"format": FORMAT, **vars(origin), "answers": len(answers)}
    parts = [json.dumps(head).encode() + b"\n"]
    parts += [np.array(columns[name], kind).tobytes() for name, kind in HEADS]
    parts += [answer.ids.astype("<u2").tobytes() for answer in answers]
    path.write_bytes(lzma.compress(b"".join(parts), preset=6 | lzma.PRESET_EXTREME))


def load(path: Path) -> tuple[Origin, list[Answer]]:
    """Read a shard; raises `TrainingError` when it is not one or is damaged."""
    try:
        line, data = lzma.decompress(path.read_bytes()).split(b"\n", 1)
        head = json.loads(line)
        if head.pop("format") != FORMAT:
            raise ValueError("another format")
        count = head.pop("answers")
        return Origin(**head), list(_answers(data, count))
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{path} is not a shard of text: {error}", "write it again") from error


def _answers(data: bytes, count: int) -> Iterator[Answer]:
    place, found = 0, []
    for _, kind in HEADS:
        size = count * np.dtype(kind).itemsize
        found.append(np.frombuffer(data[place : place + size], kind))
        place += size
    ids = np.frombuffer(data[place:], "<u2")
    ends = np.cumsum(found[1])
    if any(len(column) != count for column in found) or (ends[-1:] != len(ids)).any():
        raise ValueError("it is shorter than it says")
    for row, end in enumerate(ends):
        source, length, temperature, ended = (column[row] for column in found)
        yield Answer(int(source), ids[end - length : end], float(temperature), bool(ended))


def answers_of(folders: Iterable[Path]) -> Iterator[Answer]:
    """The answers of recordings, each prompt once."""
    seen: set[int] = set()
    for folder in folders:
        corpus = Corpus([folder], 1 << 30, held_out=None)
        for recording, number in corpus.items:
            record = corpus.recordings[recording].sequences[number]
            if int(record["source"]) in seen:
                continue
            seen.add(int(record["source"]))
            rows = corpus.recordings[recording].sequence(number)
            ids = np.asarray(rows["next"][int(record["prompt"]) - 1 :], np.uint16)
            yield Answer(
                int(record["source"]), ids, float(record["temperature"]), bool(record["ended"])
            )


def known(shards: Iterable[Path], prompts: Path, seed: int) -> dict[int, Answer]:
    """Answers by the number of their prompt; raises `TrainingError` for shards of other prompts."""
    found: dict[int, Answer] = {}
    for path in shards:
        origin, answers = load(path)
        if (origin.prompts_sha256, origin.seed) != (file_sha256(prompts), seed):
            raise TrainingError(
                f"{path} answers other prompts than {prompts} with seed {seed}",
                "give the prompts file and the seed that it was written with",
            )
        found |= {answer.source: answer for answer in answers}
    return found


@click.command()
@click.option("--data", type=click.Path(path_type=Path), multiple=True, required=True)
@click.option("--prompts", type=click.Path(path_type=Path), required=True)
@click.option("--seed", default=1, show_default=True, help="The seed that was written with.")
@click.option("--skip", type=click.Path(path_type=Path), multiple=True, help="Shards already kept.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Shard to write.")
def main(
    data: tuple[Path, ...], prompts: Path, seed: int, skip: tuple[Path, ...], out: Path
) -> None:
    """Keep the text of recordings as a shard."""
    try:
        kept = known(skip, prompts, seed)
        answers = [answer for answer in answers_of(data) if answer.source not in kept]
        vocab = Corpus([data[0]], 1, held_out=None).meta.n_vocab
        save(out, Origin(file_sha256(prompts), seed, vocab), answers)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error
    tokens = sum(len(answer.ids) for answer in answers)
    click.echo(
        f"{out}: {len(answers)} answers, {tokens} tokens, {out.stat().st_size} bytes", err=True
    )


if __name__ == "__main__":
    main()
