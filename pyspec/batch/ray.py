"""Batches over several processes or machines, by Ray Data (extra `[ray]`).

An actor pool with a set of models each; blocks of records go to whichever is free. Placement, retries
and back-pressure are Ray's.

    import ray
    from pyspec.batch.ray import answer

    answer(ray.data.read_parquet("prompts/"), "target.gguf", workers=4).write_parquet("answers/")
"""

from __future__ import annotations

import logging
import os
from collections import deque
from math import isnan
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.batch.records import Record, Result
from pyspec.batch.run import Batch
from pyspec.errors import Cancelled, EngineError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIELDS = {*Record.__struct_fields__, "index"}

SHARES = 4
"""Blocks of records for each worker: the last ones to finish wait for a block, not for half of all."""

_LARGEST = 1024
_DEATHS = 3
# actors that may die in a run before it is given up
_POLL_S = 0.2
_COUNTED = ("drafted", "verified", "accepted", "relaxed")


def answer(
    dataset: Any,
    model_path: str,
    *,
    workers: int = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    block: int | None = None,
    **arguments: Any,
) -> Any:
    """A dataset with `id`, `prompt_sha256`, `text`, `finish_reason`, tokens and `error` for each row of `dataset`.

    Rows have the fields of `Record`: `prompt` (or `messages`), and optionally id, max_tokens and so on.
    num_cpus, num_gpus: of each actor; a CPU has to be left for the tasks that read and write. block: records
    that an actor is given at once; all of them / (workers x 4) if not given. arguments: as `Batch` takes them.
    """
    options: dict[str, Any] = {"num_cpus": num_cpus or float(arguments.get("n_threads") or 1)}
    if num_gpus is not None:
        options["num_gpus"] = num_gpus
    return dataset.map_batches(
        _Actor,
        fn_constructor_args=(model_path, arguments),
        concurrency=workers,
        batch_size=block or block_size(dataset.count(), workers),
        batch_format="numpy",
        **options,
    )


class _Actor:
    """One actor: a `Batch` that lives as long as the actor does. Called, it answers a block of a dataset."""

    def __init__(self, model_path: str, arguments: dict[str, Any]) -> None:
        self._batch = Batch(model_path, **arguments)

    def __call__(self, block: dict[str, Any]) -> dict[str, list[Any]]:
        names = [name for name in block if name in _FIELDS]
        rows = [
            {
                name: _plain(value)
                for name, value in zip(names, values, strict=True)
                if _plain(value) is not None
            }
            for values in zip(*(block[name] for name in names), strict=True)
        ]
        records = [(row.pop("index", i), _record(row, i)) for i, row in enumerate(rows)]
        results = list(self._batch.run_indexed(iter(records)))
        return {
            "index": [result.index for result in results],
            "id": [result.id for result in results],
            "prompt_sha256": [result.prompt_sha256 for result in results],
            "text": [result.text for result in results],
            "finish_reason": [result.finish_reason or "" for result in results],
            "prompt_tokens": [result.usage.prompt_tokens for result in results],
            "completion_tokens": [result.usage.completion_tokens for result in results],
            "error": [str(result.error.message) if result.error else "" for result in results],
        }

    def answer(self, records: list[tuple[int, bytes]]) -> Iterator[bytes]:
        """Results of encoded records, each as soon as it is there."""
        decode = msgspec.json.Decoder(Record).decode
        for result in self._batch.run_indexed((i, decode(record)) for i, record in records):
            yield msgspec.json.encode(result)


def block_size(records: int, workers: int) -> int:
    """Records of a block: a quarter of a worker's share."""
    return min(_LARGEST, max(1, -(-records // (SHARES * workers))))


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own; NaN, which is how a missing number arrives, as None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and isnan(value) else value


def _record(row: dict[str, Any], index: int) -> Record:
    return msgspec.convert({"id": str(index), **row}, type=Record, strict=False)


class _Working:
    """Which actor works on which block, by the stream of its results. Blocks hold what is not answered yet."""

    def __init__(self, todo: deque[dict[int, bytes]]) -> None:
        self._todo = todo
        self.blocks: dict[Any, tuple[Any, dict[int, bytes]]] = {}

    def give(self, actor: Any) -> None:
        """The next block, if there is one."""
        if self._todo:
            block = self._todo.popleft()
            method = actor.answer.options(num_returns="streaming")
            self.blocks[method.remote(list(block.items()))] = (actor, block)

    def take(self, stream: Any) -> tuple[Any, dict[int, bytes]]:
        """A stream that has ended: its actor, and what is left of its block."""
        return self.blocks.pop(stream)


class RayBatch:
    """What `--engine ray` runs: the interface of `Batch` over actors, each of which is given blocks of records.

    Ray is started on this machine unless `RAY_ADDRESS` names a cluster. Model paths are those of the workers'
    machines. A result comes as soon as its actor has it; what an actor that died had not answered goes to another.
    """

    def __init__(self, model_path: str, *, workers: int, **arguments: Any) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra that few install
        except ImportError:
            raise OptionError("--engine ray needs Ray", "pip install 'pyspec-llama[ray]'") from None
        self._ray = ray
        self._model, self._workers, self._arguments = model_path, workers, arguments
        with Batch(
            model_path, **arguments
        ) as batch:  # its models are checked before any actor starts
            self._identity = batch.identity()
            self._parallel = batch.parallel
        self._cancelled = False
        self._counts = dict.fromkeys(("tokens", *_COUNTED), 0)
        self._seconds = 0.0
        self._own = False

    def identity(self) -> dict[str, Any]:
        """What the answers depend on; the same as of a `Batch`."""
        return self._identity

    def expect(self, records: Sequence[Record]) -> None:
        """Nothing: each actor sees its own records."""

    def run_indexed(self, records: Iterator[tuple[int, Record]]) -> Iterator[Result]:
        """Results as they finish. Raises Cancelled, and EngineError where actors keep dying."""
        rows = [(i, msgspec.json.encode(record)) for i, record in records]
        if not rows:
            return
        self._start()
        start = perf_counter()
        size = block_size(len(rows), self._workers)
        todo = deque(dict(rows[at : at + size]) for at in range(0, len(rows), size))
        try:
            for result in self._spread(todo):
                self._count(result)
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
        if "RAY_ADDRESS" in os.environ:
            ray.init(**quiet)
            return
        cores = max(os.cpu_count() or 1, self._workers * self._threads)
        ray.init(num_cpus=cores, include_dashboard=False, **quiet)

    @property
    def _threads(self) -> int:
        return int(self._arguments.get("n_threads") or 1)

    def _spread(self, todo: deque[dict[int, bytes]]) -> Iterator[Result]:
        """Give each actor a block, and another one when it has answered that."""
        ray, working, deaths = self._ray, _Working(todo), 0
        make = ray.remote(num_cpus=self._threads)(_Actor).remote
        for _ in range(min(self._workers, len(todo))):
            working.give(make(self._model, self._arguments))
        while working.blocks:
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            streams = list(working.blocks)
            ready, _ = ray.wait(streams, num_returns=1, timeout=_POLL_S, fetch_local=False)
            for stream in ready:
                try:
                    result = msgspec.json.decode(ray.get(next(stream)), type=Result)
                except StopIteration:
                    working.give(working.take(stream)[0])
                except ray.exceptions.RayActorError as error:
                    deaths += 1
                    if deaths > _DEATHS:
                        raise EngineError(f"{deaths} Ray actors died: {error}") from None
                    todo.append(working.take(stream)[1])
                    working.give(make(self._model, self._arguments))
                else:
                    working.blocks[stream][1].pop(result.index)
                    yield result

    def _count(self, result: Result) -> None:
        self._counts["tokens"] += result.usage.completion_tokens
        for name in _COUNTED:
            self._counts[name] += result.speculation.get(name, 0)

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
