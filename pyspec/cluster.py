"""Batches over many machines, by Ray. Placement, attempts and back-pressure are Ray's.

A dataset (extra `[ray]`) is answered by actors, each with its own models, which take the next block of records when free:

    import ray
    from pyspec.cluster import answer

    answer(ray.data.read_parquet("prompts/"), "target.gguf", workers=4, journal="done/").write_parquet("answers/")
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pyspec.batch.journal import Journal, Key, finished
from pyspec.batch.run import Batch
from pyspec.errors import BatchWriteError, InputError, OptionError
from pyspec.requests.records import REQUEST_FIELDS, Record
from pyspec.text.parts import Failure, RecordResult


def open_journals(
    folder: Path, run: dict[str, Any]
) -> tuple[dict[Key, RecordResult], Callable[[RecordResult], None]]:
    """The results in a folder's journals, without those that failed, and what appends to this process's own one.

    run: identity of the batch. Raises BatchWriteError, and ResumeMismatch if the folder belongs to other models or options.
    """
    known: dict[Key, RecordResult] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.journal")):
            with path.open("rb") as stream:
                results = (result for result, *_ in finished(stream, path, run))
                known |= {(each.id, each.prompt_sha256): each for each in results if not each.error}
    except OSError as error:
        raise BatchWriteError(f"{folder} cannot be used: {error.strerror}") from None
    return known, Journal(folder / f"{uuid.uuid4().hex}.journal", run).append


_FIELDS = {"id", *REQUEST_FIELDS}  # other columns are the dataset's own
_BLOCK = 256  # largest block of a batch, records
_DEATHS = 3  # actors that a block may kill; Ray's own default is no limit


def answer(
    dataset: Any,
    model_path: str,
    *,
    workers: int = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    batch_size: int = _BLOCK,
    journal: str | Path | None = None,
    **arguments: Any,
) -> Any:
    """Answer a Ray dataset. A row that cannot be read or answered has an `error` in place of a text.

    Args:
        dataset: Rows with the fields of `Record`: `prompt` (or `messages`), and optionally id, max_tokens and so on.
        model_path: A file or a name, as `Batch` takes it.
        workers: Actors, each with its own models.
        num_cpus: CPUs of each actor, which uses as many threads. Leave one for the tasks that read and write.
        num_gpus: GPUs of each actor.
        batch_size: Most rows that an actor takes at once. Ray tries a block again if its actor dies, three times.
        journal: A folder that all workers can access. Finished rows are written there at once, and a row with the same id and
            request is not computed again.
        **arguments: Further arguments of `Batch`.

    Returns:
        A dataset with `id`, `prompt_sha256`, `text`, `finish_reason`, tokens and `error` for each row.

    Raises:
        OptionError: A journal is given, and rows have no id.
    """
    if journal is not None and "id" not in (dataset.columns() or ()):
        raise OptionError("a journal needs rows with an id", "add a column `id`")
    cpus = num_cpus or float(arguments.get("n_threads") or 1)
    given = model_path, {"n_threads": max(1, int(cpus)), **arguments}, journal and str(journal)
    from ray.data import ActorPoolStrategy  # noqa: PLC0415 - an extra that few install

    return dataset.map_batches(
        _Rows,
        fn_constructor_args=given,
        compute=ActorPoolStrategy(size=workers),
        batch_size=batch_size,
        batch_format="pyarrow",
        max_restarts=_DEATHS,
        max_task_retries=_DEATHS,
        num_cpus=cpus,
        **({} if num_gpus is None else {"num_gpus": num_gpus}),
    )


class _Rows:
    """A worker with its own `Batch`, and its own journal in a folder. A call answers rows of a dataset."""

    def __init__(
        self, model_path: str, arguments: dict[str, Any], journal: str | None = None
    ) -> None:
        self._batch = Batch(model_path, **arguments)
        self._known: dict[Key, RecordResult] = {}
        self._append: Callable[[RecordResult], None] | None = None
        if journal is not None:
            self._known, self._append = open_journals(Path(journal), self._batch.identity())

    def __call__(self, table: Any) -> dict[str, list[Any]]:
        results = list(self._answer([_record(i, row) for i, row in enumerate(table.to_pylist())]))
        return {name: [read(each) for each in results] for name, read in _COLUMNS.items()}

    def _answer(self, records: Sequence[Record]) -> Iterator[RecordResult]:
        """Yield results, those of the journals first, the others as they finish."""
        known, todo = self._known, list(enumerate(records))
        if self._append is not None:
            found = [known.get((record.id, record.sha256)) for record in records]
            yield from filter(None, found)
            todo = [each for each, kept in zip(todo, found) if kept is None]
        for result in self._batch.run_indexed(todo):
            if self._append is not None:
                self._append(result)
            yield result


_COLUMNS: dict[str, Callable[[RecordResult], Any]] = {
    "id": lambda result: result.id,
    "prompt_sha256": lambda result: result.prompt_sha256,
    "text": lambda result: result.text,
    "finish_reason": lambda result: result.finish_reason or "",
    "prompt_tokens": lambda result: result.usage.prompt_tokens,
    "completion_tokens": lambda result: result.usage.completion_tokens,
    "error": lambda result: result.error.message if result.error else "",
}


def _record(index: int, row: dict[str, Any]) -> Record:
    """A row as a record. One that cannot be read carries its error, so that the block goes on."""
    known = {name: row[name] for name in row.keys() & _FIELDS if row[name] is not None}
    known["id"] = str(known.get("id", index))
    try:
        return msgspec.convert(known, type=Record, strict=False)
    except msgspec.ValidationError as error:
        failure = Failure.of(InputError(f"the row cannot be read: {error}"))
        return Record(id=known["id"], error=failure)
