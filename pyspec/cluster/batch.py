"""Batches over several processes or machines, by Ray Data (extra `[ray]`).

Each actor of a pool has its own models, and takes the next block of records when it is free. Ray does placement, retries and
back-pressure.

    import ray
    from pyspec.cluster.batch import answer

    answer(ray.data.read_parquet("prompts/"), "target.gguf", workers=4, journal="done/").write_parquet("answers/")
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from pyspec.batch.maker import Settings
from pyspec.batch.run import Batch
from pyspec.cluster.attempts import Attempts
from pyspec.cluster.shards import JournalFolder
from pyspec.errors import Cancelled, EngineError, InputError, OptionError
from pyspec.requests.records import REQUEST_FIELDS, Record, failed
from pyspec.text.result import Failure, RecordResult

_FIELDS = {"id", *REQUEST_FIELDS}  # other columns are the dataset's own

SHARES = 4
"""Blocks per worker, of about equal tokens. Small blocks keep the workers busy until the end."""

_LARGEST = 1024
_DEATHS = 3
# actors that one record may kill, and actors per worker that may die in a row without a result
_POLL_S = 0.2
_COUNTED = ("tokens", "drafted", "verified", "accepted", "relaxed")


def answer(
    dataset: Any,
    model_path: str,
    *,
    workers: int = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    block_tokens: int | None = None,
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
        block_tokens: Approximate tokens of a block, prompts and answers. None for a quarter of a worker's share, which costs
            another pass over the rows.
        journal: A folder that all workers can access. Finished rows are written there at once, and a row with the same id and
            request is not computed again.
        **arguments: Further arguments of `Batch`.

    Returns:
        A dataset with `id`, `prompt_sha256`, `text`, `finish_reason`, tokens and `error` for each row.

    Raises:
        OptionError: A journal is given, and rows have no id.
    """
    import ray  # noqa: PLC0415 - an extra that few install
    from ray.data import ActorPoolStrategy  # noqa: PLC0415 - as above

    if journal is not None and "id" not in (dataset.columns() or ()):
        raise OptionError("a journal needs rows with an id", "add a column `id`")
    cpus = num_cpus or float(arguments.get("n_threads") or 1)
    options: dict[str, Any] = {"num_cpus": cpus}
    if num_gpus is not None:
        options["num_gpus"] = num_gpus
    settings = arguments.get("settings") or Settings()
    if block_tokens is None:
        sizes = dataset.map_batches(_sizes, fn_args=(settings,), batch_format="pyarrow")
        block_tokens = -(-(sizes.sum("tokens") or 1) // (SHARES * workers))
    blocks = dataset.map_batches(
        _blocks, fn_args=(settings, block_tokens), batch_size=_LARGEST, batch_format="pyarrow"
    )
    arguments = {"n_threads": max(1, int(cpus)), **arguments}
    begun = ray.remote(num_cpus=0)(Attempts).remote()
    return blocks.repartition(target_num_rows_per_block=1).map_batches(
        _Actor,
        fn_constructor_args=(model_path, arguments, journal and str(journal), begun),
        compute=ActorPoolStrategy(size=workers),
        batch_size=1,
        batch_format="pyarrow",
        **options,
    )


def _sizes(table: Any, settings: Settings) -> dict[str, list[int]]:
    """The estimated tokens of each row."""
    return {"tokens": [settings.guess(record) for _, record in _records(table)]}


def _blocks(table: Any, settings: Settings, tokens: int) -> dict[str, list[bytes]]:
    """A row of JSON for each block of about so many tokens."""
    blocks = cut(_records(table), settings, tokens)
    return {"records": [msgspec.json.encode(block) for block in blocks]}


def _records(table: Any) -> list[tuple[int, Record]]:
    found = []
    for i, row in enumerate(table.to_pylist()):
        known = {name: row[name] for name in row.keys() & _FIELDS if row[name] is not None}
        found.append((i, _record({**known, "id": str(known.get("id", i))})))
    return found


class _Actor:
    """A worker with its own `Batch`. A call answers a block of a dataset.

    begun: the actor with the dataset's `Attempts`.
    """

    def __init__(
        self,
        model_path: str,
        arguments: dict[str, Any],
        journal: str | None = None,
        begun: Any = None,
    ) -> None:
        self._begun = begun
        self._batch = Batch(model_path, **arguments)
        run = self._batch.identity()
        self._journal = None if journal is None else JournalFolder(Path(journal), run)

    def __call__(self, block: Any) -> dict[str, list[Any]]:
        (data,) = block["records"].to_pylist()
        records = msgspec.json.decode(data, type=list[tuple[int, Record]])
        kept = {}
        if self._journal is not None:
            kept = {i: self._journal.find(i, record) for i, record in records}
        results = [result for result in kept.values() if result is not None]
        for result in self._carefully(data, [each for each in records if not kept.get(each[0])]):
            results.append(result)
            if self._journal is not None:
                self._journal.append(result)
        rows = [_row(result) for result in results]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _carefully(self, block: bytes, records: list[tuple[int, Record]]) -> Iterator[RecordResult]:
        """A block's results. After it has killed an actor its records run one by one, and fail after `_DEATHS` attempts."""
        import ray  # noqa: PLC0415 - an extra that few install

        name = hashlib.sha256(block).hexdigest()
        if not ray.get(self._begun.begin.remote(name)):
            yield from self.answer(records)
        else:
            for index, record in records:
                if ray.get(self._begun.begin.remote(f"{name} {index}")) < _DEATHS:
                    yield from self.answer([(index, record)])
                    self._begun.end.remote(f"{name} {index}")
                else:
                    yield failed(index, record, _killer())
        self._begun.end.remote(name)

    def answer(self, records: list[tuple[int, Record]]) -> Iterator[RecordResult]:
        """Results of records as they finish."""
        for result in self._batch.run_indexed(records):  # noqa: UP028 - Ray sends into what it iterates over
            yield result


def _killer() -> EngineError:
    return EngineError(f"its worker died {_DEATHS} times")


def _record(row: dict[str, Any]) -> Record:
    """A row as a record. One that cannot be read carries its error, so that the block goes on."""
    try:
        return msgspec.convert(row, type=Record, strict=False)
    except msgspec.ValidationError as error:
        failure = Failure.of(InputError(f"the row cannot be read: {error}"))
        return Record(id=row["id"], error=failure)


def _row(result: RecordResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "prompt_sha256": result.prompt_sha256,
        "text": result.text,
        "finish_reason": result.finish_reason or "",
        "prompt_tokens": result.usage.prompt_tokens,
        "completion_tokens": result.usage.completion_tokens,
        "error": result.error.message if result.error else "",
    }


def cut(
    records: Sequence[tuple[int, Record]], settings: Settings, tokens: int
) -> list[list[tuple[int, Record]]]:
    """Split records into blocks of about so many tokens of prompts and answers, and of at most 1,024 records."""
    blocks: list[list[tuple[int, Record]]] = []
    room = 0.0
    for index, record in records:
        size = settings.guess(record)
        if not blocks or room < size / 2 or len(blocks[-1]) == _LARGEST:
            blocks.append([])
            room = tokens
        blocks[-1].append((index, record))
        room -= size
    return blocks


def largest_share(cpus: Sequence[int], workers: int) -> int:
    """The most CPUs, at least 1, that every worker can have on machines with these numbers of CPUs."""
    sizes = range(max(cpus, default=1), 1, -1)
    return next((n for n in sizes if sum(each // n for each in cpus) >= workers), 1)


class RayBatch:
    """The engine of `--engine ray`: the interface of `Batch` over actors that take blocks of records.

    Ray is started on this machine unless `RAY_ADDRESS` names a cluster. Model paths are those of the workers' machines. Results
    are delivered as they finish. When an actor dies, its unanswered records go to others one by one; a record that kills three
    actors fails. An actor has as many threads as CPUs: n_threads, or its share of the cluster. Texts equal those of a local batch
    except at near-ties, since other records share a decode and floats round differently (exact=True makes them equal).
    num_gpus: of each actor; None for one if the cluster has GPUs and layers are offloaded.
    """

    def __init__(
        self, model_path: str, *, workers: int, num_gpus: float | None = None, **arguments: Any
    ) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra that few install
        except ImportError:
            raise OptionError("--engine ray needs Ray", "pip install 'ray[data]'") from None
        self._ray = ray
        self._model, self._workers, self._arguments = model_path, workers, arguments
        # check the models before any actor starts
        with Batch(model_path, **arguments) as batch:
            self._identity = batch.identity()
            self._parallel, self._settings = batch.parallel, batch.settings
        self._cancelled = False
        self._threads = int(arguments.get("n_threads") or 0)
        self._gpus = num_gpus
        self._died: dict[int, int] = {}
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._seconds = 0.0
        self._own = False
        self._todo: deque[dict[int, Record]] = deque()
        self._blocks: dict[Any, tuple[Any, dict[int, Record]]] = {}
        # by a block's stream of results: its actor, and its unanswered records

    def identity(self) -> dict[str, Any]:
        """The identity of models and options, equal to that of a `Batch`."""
        return self._identity

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """Results as they finish. Raises Cancelled, and EngineError if actors keep dying."""
        if not records:
            return
        self._start()
        self._fit()
        start = perf_counter()
        tokens = sum(self._settings.guess(record) for _, record in records)
        blocks = cut(records, self._settings, -(-tokens // (SHARES * self._workers)))
        self._todo = deque(map(dict, blocks))
        self._blocks = {}
        try:
            for result in self._spread():
                counts = {"tokens": result.usage.completion_tokens, **result.speculation}
                for name in _COUNTED:
                    self._counts[name] += counts.get(name, 0)
                self._seconds = perf_counter() - start
                yield result
        finally:
            self._seconds = perf_counter() - start

    def _start(self) -> None:
        ray = self._ray
        if ray.is_initialized():
            return
        self._own = True
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if "RAY_ADDRESS" not in os.environ:
            cores = max(os.cpu_count() or 1, self._workers * max(1, self._threads))
            quiet |= {"num_cpus": cores, "include_dashboard": False}
        try:
            ray.init(**quiet)
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            reason = str(error).strip().partition("\n")[0][:200]
            raise EngineError(
                f"Ray cannot be used at {where}: {reason}", "check RAY_ADDRESS"
            ) from None

    def _fit(self) -> None:
        """Raise OptionError if no machine has the CPUs and GPUs of an actor: Ray would wait for one for ever."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node.get("Alive")]
        cpus = [int(node.get("CPU", 0)) for node in nodes]
        self._threads = self._threads or largest_share(cpus, self._workers)
        threads = {"n_threads": self._threads, "n_threads_batch": self._threads}
        self._arguments = {**self._arguments, **threads}
        most = max(cpus, default=0)
        if most < self._threads:
            raise OptionError(
                f"each worker asks for {self._threads} CPUs, and no machine of the cluster has more than {most:g}",
                "lower -t (n_threads)",
            )
        gpus = max((node.get("GPU", 0) for node in nodes), default=0)
        if self._gpus is None:
            self._gpus = 1.0 if gpus and self._arguments.get("n_gpu_layers") != 0 else 0.0
        if self._gpus > gpus:
            raise OptionError(
                f"each worker asks for {self._gpus:g} GPUs, and no machine of the cluster has more than {gpus:g}",
                "lower num_gpus",
            )

    def _spread(self) -> Iterator[RecordResult]:
        """Keep every actor busy with blocks, and yield their results."""
        ray, blocks, deaths = self._ray, self._blocks, 0
        for _ in range(self._workers):
            self._give()
        while blocks:
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            ready, _ = ray.wait(list(blocks), num_returns=1, timeout=_POLL_S, fetch_local=False)
            for stream in ready:
                try:
                    result = ray.get(next(stream))
                except StopIteration:
                    self._give(blocks.pop(stream)[0])
                except ray.exceptions.RayActorError as error:
                    deaths += 1
                    if deaths > _DEATHS * self._workers:
                        raise EngineError(f"{deaths} Ray actors died: {error}") from None
                    yield from self._again(blocks.pop(stream)[1])
                    self._give()
                else:
                    deaths = 0
                    blocks[stream][1].pop(result.index)
                    yield result

    def _again(self, left: dict[int, Record]) -> Iterator[RecordResult]:
        """Queue a dead actor's unanswered records as blocks of one. Yields the failure of one that killed too many."""
        if len(left) > 1:
            self._todo.extend({index: record} for index, record in left.items())
            return
        for index, record in left.items():
            self._died[index] = self._died.get(index, 0) + 1
            if self._died[index] < _DEATHS:
                self._todo.append(left)
            else:
                yield failed(index, record, _killer())

    def _give(self, actor: Any = None) -> None:
        """Send the next block, if any, to this actor or a new one."""
        if self._todo:
            if actor is None:
                make = self._ray.remote(num_cpus=self._threads, num_gpus=self._gpus or 0)(
                    _Actor
                ).remote
                actor = make(self._model, self._arguments)
            block = self._todo.popleft()
            method = actor.answer.options(num_returns="streaming")
            self._blocks[method.remote(list(block.items()))] = (actor, block)

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
