"""The same records over Ray Data, on a local cluster of two workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

from helpers.rays import OF_RAY  # noqa: E402

from pyspec.batch import Batch  # noqa: E402
from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.cluster.batch import RayBatch, _Rows, answer, largest_share  # noqa: E402
from pyspec.errors import EngineError, OptionError, ResumeMismatch  # noqa: E402
from pyspec.requests.records import Record  # noqa: E402

pytestmark = [*OF_RAY, pytest.mark.usefixtures("cluster")]


PROMPTS = ["abc", "hello", "once upon a time", "the end"] * 3


@pytest.fixture
def cluster():
    """Two workers, and a processor for reading and writing beside them."""
    ray.init(num_cpus=3, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture
def arguments():
    settings = Settings(max_tokens=12, raw=True)
    words = {
        "draft": "none",
        "companion": "none",
        "n_ctx": 256,
        "parallel": 2,
        "settings": settings,
    }
    return {**words, "n_threads": 1, "n_threads_batch": 1}


def test_two_workers_answer_as_one(arguments, tiny_target):
    """Every record once, with the text and the hash of a local batch."""
    records = [Record(id=str(i), prompt=prompt) for i, prompt in enumerate(PROMPTS)]
    with Batch(str(tiny_target), **arguments) as batch:
        local = sorted(batch.run(records), key=lambda result: result.index)
    with RayBatch(str(tiny_target), workers=2, **arguments) as batch:
        found = sorted(batch.run_indexed(list(enumerate(records))), key=lambda result: result.index)
    assert [(r.id, r.text, r.prompt_sha256) for r in found] == [
        (r.id, r.text, r.prompt_sha256) for r in local
    ]


def test_threads_are_the_clusters_share(arguments, tiny_target):
    """Where nobody says how many, each worker has as many as there are CPUs for it."""
    shares = {((8,), 1): 8, ((8,), 3): 2, ((8, 8), 2): 8, ((8, 2), 3): 2, ((1,), 4): 1, ((), 1): 1}
    assert {given: largest_share(*given) for given in shares} == shares
    none = {**arguments, "n_threads": None, "n_threads_batch": None}
    with RayBatch(str(tiny_target), workers=1, **none) as batch:
        assert batch._share() == {"num_cpus": 3, "num_gpus": 0}


def _actors():
    """Process ids of this machine's actors, by the title that Ray gives them."""
    lines = Path("/proc").glob("[0-9]*/cmdline")
    return [int(line.parent.name) for line in lines if b"ray::MapWorker" in _read(line)]


def _read(path):
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def test_worker_that_dies_loses_nothing(arguments, tiny_target, monkeypatch):
    """What it had not answered goes to another one, and nothing comes twice."""
    records = [Record(id=str(i), prompt="abc" + "x" * i) for i in range(12)]
    with RayBatch(str(tiny_target), workers=2, **arguments) as batch:
        found = []
        for result in batch.run_indexed(list(enumerate(records))):
            found.append(result.index)
            if len(found) == 2:
                os.kill(_actors()[0], signal.SIGKILL)
    assert sorted(found) == list(range(12))


@pytest.mark.filterwarnings("error:.*concurrency.*")
def test_datasets_in_and_out(arguments, tiny_target, tmp_path):
    """A Parquet file of prompts becomes a Parquet file of answers."""
    with Batch(str(tiny_target), **arguments) as batch:
        local = {result.id: result.text for result in batch.run(PROMPTS)}
    rows = [{"id": str(i), "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    ray.data.from_items(rows).write_parquet(str(tmp_path / "in"))
    data = ray.data.read_parquet(str(tmp_path / "in"))
    answer(data, str(tiny_target), workers=2, **arguments).write_parquet(str(tmp_path / "out"))
    found = {
        row["id"]: row["text"] for row in ray.data.read_parquet(str(tmp_path / "out")).iter_rows()
    }
    assert found == local


def test_what_a_journal_has_is_not_computed_again(arguments, tiny_target, tmp_path, monkeypatch):
    """By id and wishes, whoever finished it; what failed, asks otherwise or is new is computed."""
    pyarrow = pytest.importorskip("pyarrow")

    def answers(**columns):
        worker = _Rows(str(tiny_target), arguments, str(tmp_path / "done"))
        run, computed = worker._batch.run_indexed, []

        def noted(records):
            computed.extend(record.id for _, record in records)
            return run(records)

        monkeypatch.setattr(worker._batch, "run_indexed", noted)
        table = {"id": ["a", "b", "c"], "prompt": ["abc", "hello", "x"], **columns}
        found = worker(pyarrow.table(table))
        return computed, dict(zip(found["id"], found["text"], strict=True))

    first = answers(max_tokens=[None, None, -1])
    assert sorted(first[0]) == ["a", "b", "c"]
    computed, texts = answers(max_tokens=[None, 3, -1])
    assert sorted(computed) == ["b", "c"]
    assert texts["a"] == first[1]["a"]
    assert answers(max_tokens=[None, 3, 2])[0] == ["c"]
    assert answers(max_tokens=[None, 3, 2])[0] == []


def test_a_journal_of_other_options_is_refused(arguments, tiny_target, tmp_path):
    """And rows that have no id cannot be found in one."""
    _Rows(str(tiny_target), arguments, str(tmp_path))
    other = {**arguments, "settings": Settings(max_tokens=5, raw=True)}
    with pytest.raises(ResumeMismatch, match="max_tokens"):
        _Rows(str(tiny_target), other, str(tmp_path))
    rows = ray.data.from_items([{"prompt": "abc"}])
    with pytest.raises(OptionError, match="id"):
        answer(rows, str(tiny_target), journal=tmp_path, **arguments)


@pytest.mark.filterwarnings("error:.*concurrency.*")
def test_a_dataset_goes_on_where_it_stopped(arguments, tiny_target, tmp_path):
    """The second run over more rows has the first one's journals, and adds to them."""
    rows = [{"id": str(i), "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    done = tmp_path / "done"

    def run(some):
        data = ray.data.from_items(some)
        return answer(data, str(tiny_target), workers=2, journal=done, **arguments).take_all()

    def lines():
        return sum(len(path.read_bytes().splitlines()) - 1 for path in done.glob("*.journal"))

    first = {row["id"]: row["text"] for row in run(rows[:5])}
    assert lines() == 5
    found = {row["id"]: row["text"] for row in run(rows)}
    assert (len(found), lines()) == (len(rows), len(rows))
    assert {key: found[key] for key in first} == first


def test_a_row_that_cannot_be_read_is_its_own_error(arguments, tiny_target):
    """Beside good ones, which are answered."""
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.table({"id": ["a", "b"], "prompt": ["abc"] * 2, "max_tokens": [None, "many"]})
    found = _Rows(str(tiny_target), arguments)(rows)
    errors = dict(zip(found["id"], found["error"], strict=True))
    assert not errors["a"]
    assert "cannot be read" in errors["b"]


def test_ids_are_numbers_or_texts_and_other_columns_are_let_be(arguments, tiny_target):
    """A dataset has columns of its own, which may be called as a record's place or as what a former run wrote."""
    pyarrow = pytest.importorskip("pyarrow")
    own = {"index": ["x", "x"], "error": ["", "it failed"], "source": [1, 2], "line": ["a", "b"]}
    rows = pyarrow.table({"id": [7, 8], "prompt": ["abc", "hello"], **own})
    found = _Rows(str(tiny_target), arguments)(rows)
    assert sorted(zip(found["id"], found["error"])) == [("7", ""), ("8", "")]


def test_more_cpus_than_any_machine_has_is_an_error(arguments, tiny_target):
    """Ray would wait for such a machine for ever, without a word."""
    many = {**arguments, "n_threads": 4}
    with (
        RayBatch(str(tiny_target), workers=1, **many) as batch,
        pytest.raises(OptionError, match="asks for 4 CPUs"),
    ):
        list(batch.run_indexed([(0, Record(id="a", prompt="a"))]))


def test_a_record_that_ends_every_worker_ends_the_batch(arguments, tiny_target, monkeypatch):
    """After as many attempts as Ray makes; the rest is answered by the same command without it."""
    import pyspec.cluster.batch as module

    class Mortal(module._Records):
        def answer(self, records):
            if any(record.prompt == "poison" for record in records):
                os._exit(1)
            return super().answer(records)

    monkeypatch.setattr(module, "_Records", Mortal)
    records = [Record(id=str(i), prompt="poison" if i == 3 else "ab") for i in range(8)]
    with (
        RayBatch(str(tiny_target), workers=1, **arguments) as batch,
        pytest.raises(EngineError, match="worker"),
    ):
        list(batch.run_indexed(list(enumerate(records))))
