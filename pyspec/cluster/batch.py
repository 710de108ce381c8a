"""Batches over several processes or machines, by Ray Data (extra `[ray]`).

Each actor of a pool has its own models, and takes the next block of records when it is free. Placement, attempts and
back-pressure are Ray's.

    import ray
    from pyspec.cluster.batch import answer

    answer(ray.data.read_parquet("prompts/"), "target.gguf", workers=4, journal="done/").write_parquet("answers/")
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from pyspec.batch.journal import Journal, Key, finished
from pyspec.batch.run import Batch
from pyspec.errors import BatchWriteError, Cancelled, EngineError, InputError, OptionError
from pyspec.requests.records import REQUEST_FIELDS, Record
from pyspec.text.result import Failure, RecordResult


class JournalFolder:
    """The answered records of a folder when it was opened, and this process's journal in it. run: identity of the batch.

    Raises BatchWriteError, and ResumeMismatch if the folder belongs to other models or options.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self._known: dict[Key, RecordResult] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.journal")):
                with path.open("rb") as stream:
                    for result, *_ in finished(stream, path, run):
                        if result.error is None:
                            self._known[result.id, result.prompt_sha256] = result
        except OSError as error:
            raise BatchWriteError(f"{folder} cannot be used: {error.strerror}") from None
        self._own = Journal(folder / f"{uuid.uuid4().hex}.journal", run)
        self.append, self.close = self._own.append, self._own.close

    def find(self, record: Record) -> RecordResult | None:
        """The result of an answered record; None for another one."""
        return self._known.get((record.id, record.sha256))


_FIELDS = {"id", *REQUEST_FIELDS}  # other columns are the dataset's own
_BLOCK = 256
# largest block of a batch, records
_SHARES = 4
# blocks per worker, so that all are busy until the end
_DEATHS = 3
# actors that a block may kill; Ray's own default is no limit
_COUNTED = ("tokens", "drafted", "verified", "accepted", "relaxed")


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
    return _mapped(dataset, _Rows, given, workers, batch_size, num_cpus=cpus, num_gpus=num_gpus)


def _mapped(
    dataset: Any, worker: type, given: tuple[Any, ...], workers: int, size: int | None, **each: Any
) -> Any:
    """Map a dataset over actors. given: what each is made with. size: rows at once, None for Ray's own blocks."""
    from ray.data import ActorPoolStrategy  # noqa: PLC0415 - an extra that few install

    return dataset.map_batches(
        worker,
        fn_constructor_args=given,
        compute=ActorPoolStrategy(size=workers),
        batch_size=size,
        batch_format="pyarrow",
        max_restarts=_DEATHS,
        max_task_retries=_DEATHS,
        **{name: value for name, value in each.items() if value is not None},
    )


class _Rows:
    """A worker with its own `Batch`, and its own journal in a folder. A call answers rows of a dataset."""

    def __init__(
        self, model_path: str, arguments: dict[str, Any], journal: str | None = None
    ) -> None:
        self._batch = Batch(model_path, **arguments)
        run = self._batch.identity()
        self._journal = None if journal is None else JournalFolder(Path(journal), run)

    def __call__(self, table: Any) -> dict[str, list[Any]]:
        results = list(self.answer([_record(i, row) for i, row in enumerate(table.to_pylist())]))
        return {name: [read(each) for each in results] for name, read in _COLUMNS.items()}

    def answer(self, records: Sequence[Record]) -> Iterator[RecordResult]:
        """Yield results, those of the journals first, the others as they finish."""
        todo, journal = list(enumerate(records)), self._journal
        if journal is not None:
            kept = {i: found for i, record in todo if (found := journal.find(record))}
            yield from (replace(found, index=i) for i, found in kept.items())
            todo = [each for each in todo if each[0] not in kept]
        for result in self._batch.run_indexed(todo):
            if journal is not None:
                journal.append(result)
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


class _Records(_Rows):
    """A worker that takes records with their indexes as JSON, and returns results as JSON."""

    def __call__(self, table: Any) -> dict[str, list[Any]]:
        decode = msgspec.json.Decoder(tuple[int, Record]).decode
        indexes, records = zip(*map(decode, table["record"].to_pylist()))
        found = []
        for result in self.answer(records):
            result.index, result.tokens = indexes[result.index], ()
            found.append(msgspec.json.encode(result))
        return {"result": found}


def largest_share(cpus: Sequence[int], workers: int) -> int:
    """The most CPUs, at least 1, that every worker can have on machines with these numbers of CPUs."""
    sizes = range(max(cpus, default=1), 1, -1)
    return next((n for n in sizes if sum(each // n for each in cpus) >= workers), 1)


class RayBatch:
    """The engine of `--engine ray`: the interface of `Batch` over actors that take blocks of records.

    Ray is started on this machine unless `RAY_ADDRESS` names a cluster. Model paths are those of the workers' machines. Results
    are delivered block by block. An actor has as many threads as CPUs (n_threads, or its share of the cluster), and a GPU if the
    cluster has any and layers are offloaded. Texts equal those of a local batch except at near-ties, since other records share a
    decode and floats round differently (exact=True makes them equal).
    """

    def __init__(self, model_path: str, *, workers: int, **arguments: Any) -> None:
        try:
            import ray.data  # noqa: PLC0415 - an extra that few install
        except ImportError:
            raise OptionError("--engine ray needs Ray", "pip install 'ray[data]'") from None
        self._ray, self._workers = ray, workers
        self._model, self._arguments = model_path, arguments
        # check the models before any actor starts
        with Batch(model_path, **arguments) as batch:
            self._identity, self._parallel = batch.identity(), batch.parallel
        self._cancelled = self._own = False
        self._counts, self._seconds = dict.fromkeys(_COUNTED, 0), 0.0

    def identity(self) -> dict[str, Any]:
        """The identity of models and options, equal to that of a `Batch`."""
        return self._identity

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """Results as their blocks finish. Raises Cancelled, and EngineError if actors keep dying."""
        if not records:
            return
        self._start()
        start, each = perf_counter(), self._share()
        rows = [{"record": msgspec.json.encode(record)} for record in records]
        blocks = max(-(-len(rows) // _BLOCK), min(len(rows), _SHARES * self._workers))
        data = self._ray.data.from_items(rows, override_num_blocks=blocks)
        threads = {"n_threads": each["num_cpus"], "n_threads_batch": each["num_cpus"]}
        given = self._model, {**self._arguments, **threads}
        try:
            for row in _mapped(data, _Records, given, self._workers, None, **each).iter_rows():
                if self._cancelled:
                    raise Cancelled("the batch was cancelled")
                result = msgspec.json.decode(row["result"], type=RecordResult)
                counts = {"tokens": result.usage.completion_tokens, **result.speculation}
                for name in _COUNTED:
                    self._counts[name] += counts.get(name, 0)
                self._seconds = perf_counter() - start
                yield result
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise EngineError(f"a Ray worker failed: {reason}") from None

    def _start(self) -> None:
        ray = self._ray
        ray.data.DataContext.get_current().enable_progress_bars = False
        if ray.is_initialized():
            return
        self._own = True
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if "RAY_ADDRESS" not in os.environ:
            threads = int(self._arguments.get("n_threads") or 0)
            cores = max(os.cpu_count() or 1, self._workers * max(1, threads))
            quiet |= {"num_cpus": cores, "include_dashboard": False}
        try:
            ray.init(**quiet)
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            reason = str(error).strip().partition("\n")[0][:200]
            raise EngineError(
                f"Ray cannot be used at {where}: {reason}", "check RAY_ADDRESS"
            ) from None

    def _share(self) -> dict[str, int]:
        """CPUs and GPUs of an actor. Raises OptionError if no machine has so many CPUs: Ray would wait for one for ever."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node.get("Alive")]
        cpus = [int(node.get("CPU", 0)) for node in nodes]
        own = int(self._arguments.get("n_threads") or 0) or largest_share(cpus, self._workers)
        if own > max(cpus, default=0):
            raise OptionError(
                f"each worker asks for {own} CPUs, and no machine has them", "lower -t"
            )
        offloads = self._arguments.get("n_gpu_layers") != 0
        return {"num_cpus": own, "num_gpus": int(offloads and any("GPU" in node for node in nodes))}

    def cancel(self) -> None:
        """Stop after the next result."""
        self._cancelled = True

    def stats(self) -> dict[str, Any]:
        """Totals of all actors."""
        rate = self._counts["tokens"] / self._seconds if self._seconds else 0.0
        return {
            "parallel": self._parallel * self._workers,
            "workers": self._workers,
            "seconds": round(self._seconds, 3),
            **self._counts,
            "tokens_per_second": round(rate, 2),
        }

    def close(self) -> None:
        """Shut Ray down if it was started here."""
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()

    def __enter__(self) -> RayBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
