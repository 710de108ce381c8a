"""Batches over several processes or machines, by Ray Data (extra `[ray]`).

An actor pool with a set of models each; blocks of records go to whichever is free. Placement, retries
and back-pressure are Ray's.

    import ray
    from pyspec.batch.ray import answer

    answer(ray.data.read_parquet("prompts/"), "target.gguf", workers=4).write_parquet("answers/")
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.batch.records import Record, Result
from pyspec.batch.run import Batch
from pyspec.errors import Cancelled, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIELDS = {*Record.__struct_fields__, "index", "record"}

BLOCK = 64
"""Records that go to an actor at once, at least: enough to keep its sequences busy to the end."""


def answer(
    dataset: Any,
    model_path: str,
    *,
    workers: int = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    block: int = BLOCK,
    **arguments: Any,
) -> Any:
    """A dataset with `id`, `prompt_sha256`, `text`, `finish_reason`, tokens and `error` for each row of `dataset`.

    Rows have the fields of `Record`: `prompt` (or `messages`), and optionally id, max_tokens and so on.
    The column `record` may stand for them all. num_cpus, num_gpus: of each
    actor; a CPU has to be left for the tasks that read and write. arguments: as `Batch` takes them.
    """
    options: dict[str, Any] = {"num_cpus": num_cpus or float(arguments.get("n_threads") or 1)}
    if num_gpus is not None:
        options["num_gpus"] = num_gpus
    return dataset.map_batches(
        _Worker,
        fn_constructor_args=(model_path, arguments),
        concurrency=workers,
        batch_size=block,
        batch_format="numpy",
        **options,
    )


class _Worker:
    """One actor: a `Batch` that lives as long as the actor does."""

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
            "result": [msgspec.json.encode(result).decode() for result in results],
        }


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own; NaN, which is how a missing number arrives, as None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and isnan(value) else value


def _record(row: dict[str, Any], index: int) -> Record:
    if "record" in row:
        return msgspec.json.decode(row["record"], type=Record)
    return msgspec.convert({"id": str(index), **row}, type=Record, strict=False)


class RayBatch:
    """What `--engine ray` runs: the interface of `Batch` over an actor pool.

    Ray is started on this machine unless `RAY_ADDRESS` names a cluster. Model paths are those of the workers' machines.
    """

    def __init__(self, model_path: str, *, workers: int, **arguments: Any) -> None:
        try:
            import ray  # noqa: PLC0415 - an extra that few install
            import ray.data  # noqa: PLC0415
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
        self._tokens = 0

    def identity(self) -> dict[str, Any]:
        """What the answers depend on; the same as of a `Batch`."""
        return self._identity

    def expect(self, records: Sequence[Record]) -> None:
        """Nothing: each actor sees its own records."""

    def run_indexed(self, records: Iterator[tuple[int, Record]]) -> Iterator[Result]:
        """Results as blocks of them finish."""
        rows = [
            {"index": i, "record": msgspec.json.encode(record).decode()} for i, record in records
        ]
        if not rows:
            return
        self._ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
        data = self._ray.data
        data.DataContext.get_current().enable_progress_bars = False
        dataset = data.from_items(
            rows, override_num_blocks=max(1, min(len(rows), 2 * self._workers))
        )
        answered = answer(dataset, self._model, workers=self._workers, **self._arguments)
        for row in answered.iter_rows():
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            result = msgspec.json.decode(row["result"], type=Result)
            self._tokens += result.usage.completion_tokens
            yield result

    def cancel(self) -> None:
        """Stop after the result that comes next."""
        self._cancelled = True

    def stats(self) -> dict[str, Any]:
        """Tokens; the rest is the actors'."""
        return {
            "parallel": self._parallel * self._workers,
            "workers": self._workers,
            "tokens": self._tokens,
        }

    def close(self) -> None:
        """Let go of Ray."""
        if self._ray.is_initialized():
            self._ray.shutdown()

    def __enter__(self) -> RayBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
