"""Batches over several processes or machines, by Ray Data (extra `[ray]`).

An actor pool with a set of models each; blocks of records go to whichever is free. Placement, retries
and back-pressure are Ray's.

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
from pyspec.requests.records import ASKED, Record, failed
from pyspec.text.result import Failure, RecordResult

_FIELDS = {"id", *ASKED}  # other columns are the dataset's own

SHARES = 4
"""Blocks of records for each worker, of about as many tokens: the last ones to finish wait for a block, not for half of all."""

_LARGEST = 1024
_DEATHS = 3
# of actors: so many may one record cost, and so many for each worker may follow each other without a result
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
    """Answer a dataset of Ray's. A row that cannot be read or answered has its `error` in place of a text.

    Args:
        dataset: Rows with the fields of `Record`: `prompt` (or `messages`), and optionally id, max_tokens and so on.
        model_path: A file or a name, as `Batch` takes it.
        workers: Actors, each with models of its own.
        num_cpus: CPUs of each actor, which uses as many threads. Leave one for the tasks that read and write.
        num_gpus: GPUs of each actor.
        block_tokens: About how many tokens an actor is given at once, prompts and answers. None for a quarter of a worker's
            share, for which the rows are read once more.
        journal: A folder that all workers see. Finished rows go there at once; a row whose id and request are found there is
            not computed again.
        **arguments: Further arguments of `Batch`.

    Returns:
        A dataset with `id`, `prompt_sha256`, `text`, `finish_reason`, tokens and `error` for each row.

    Raises:
        OptionError: There is a journal, and rows have no id.
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
    """About how many tokens each row takes."""
    return {"tokens": [settings.guess(record) for _, record in _records(table)]}


def _blocks(table: Any, settings: Settings, tokens: int) -> dict[str, list[bytes]]:
    """A row for each block of so many tokens: its records as JSON."""
    blocks = cut(_records(table), settings, tokens)
    return {"records": [msgspec.json.encode(block) for block in blocks]}


def _records(table: Any) -> list[tuple[int, Record]]:
    found = []
    for i, row in enumerate(table.to_pylist()):
        known = {name: row[name] for name in row.keys() & _FIELDS if row[name] is not None}
        found.append((i, _record({**known, "id": str(known.get("id", i))})))
    return found


class _Actor:
    """One actor: a `Batch` that lives as long as the actor does. Called, it answers a block of a dataset.

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
        """Results of a block; where it has cost an actor, of one record after the other, and the error of one that costs many."""
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
        """Results of records, each as soon as it is there."""
        for result in self._batch.run_indexed(records):  # noqa: UP028 - Ray sends into what it iterates over
            yield result


def _killer() -> EngineError:
    return EngineError(f"its worker died {_DEATHS} times")


def _record(row: dict[str, Any]) -> Record:
    """A row as a record; one that cannot be read is its own failure, not its block's."""
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
    """Blocks of about so many tokens, prompts and answers, and of 1,024 records at most, in the order of the records."""
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
    """The most CPUs that each of so many workers can have on machines with these, at least 1."""
    sizes = range(max(cpus, default=1), 1, -1)
    return next((n for n in sizes if sum(each // n for each in cpus) >= workers), 1)


class RayBatch:
    """What `--engine ray` runs: the interface of `Batch` over actors, each of which is given blocks of records.

    Ray is started on this machine unless `RAY_ADDRESS` names a cluster. Model paths are those of the workers'
    machines. A result comes as soon as its actor has it; what an actor that died had not answered goes to another, a record
    at a time, and one that ends its actor three times is its own failure. Each has as many threads as CPUs: n_threads, or what
    the cluster has for each. Texts are those of a local batch but for near-ties, where rows of a decode round otherwise: which
    records meet in one is another matter there (exact=True makes them equal). num_gpus: of each actor; None for one where the
    cluster has any and layers go there.
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
        # models are checked before any actor starts
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
        # by the stream of its results, what is not answered yet of a block, and by which actor

    def identity(self) -> dict[str, Any]:
        """What the answers depend on; the same as of a `Batch`."""
        return self._identity

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """Results as they finish. Raises Cancelled, and EngineError where actors keep dying."""
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
                told = {"tokens": result.usage.completion_tokens, **result.speculation}
                for name in _COUNTED:
                    self._counts[name] += told.get(name, 0)
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
        """Raise OptionError where no machine has what an actor asks for: Ray would wait for one for ever."""
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
        """Give each actor a block, and another one when it has answered that."""
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
        """What an actor that died leaves goes back, each record alone; the result of one that has cost too many."""
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
        """The next block, if there is one, to this actor or to a new one."""
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
        """Stop after the result that comes next."""
        self._cancelled = True

    def stats(self) -> dict[str, Any]:
        """Counts and times of all actors together."""
        rate = self._counts["tokens"] / self._seconds if self._seconds else 0.0
        return {
            "parallel": self._parallel * self._workers,
            "workers": self._workers,
            "seconds": round(self._seconds, 3),
            **self._counts,
            "tokens_per_second": round(rate, 2),
        }

    def close(self) -> None:
        """Let go of Ray, where it was started here."""
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()

    def __enter__(self) -> RayBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
