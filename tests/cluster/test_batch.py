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
from pyspec.cluster.attempts import Attempts  # noqa: E402
from pyspec.cluster.batch import RayBatch, _Actor, _blocks, answer, cut, largest_share  # noqa: E402
from pyspec.requests.records import Record  # noqa: E402

pytestmark = [*OF_RAY, pytest.mark.usefixtures("cluster")]


def begun():
    """What tells workers apart from what kills them."""
    return ray.remote(num_cpus=0)(Attempts).remote()


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
        assert len(list(batch.run_indexed([(0, Record(id="a", prompt="a"))]))) == 1
        assert batch._arguments["n_threads"] == 3


def test_both_workers_have_work(arguments, tiny_target):
    """40 alike over two workers are blocks of 5, both have one, and results come one by one, before all are done."""
    records = [Record(id=str(i), prompt=f"{'abcdefgh'[i % 8]} word") for i in range(40)]
    with RayBatch(str(tiny_target), workers=2, **arguments) as batch:
        found = []
        for result in batch.run_indexed(list(enumerate(records))):
            found.append(result.index)
            if len(found) == 1:
                given = [index for _, block in batch._blocks.values() for index in block]
            if len(found) == 10:
                early = batch.stats()["tokens"]
        stats = batch.stats()
    assert sorted(found) == list(range(40))
    assert (early, stats["tokens"]) == (120, 480)
    assert stats["seconds"] > 0
    assert stats["tokens_per_second"] == pytest.approx(480 / stats["seconds"], rel=0.01)
    assert sorted([*given, found[0]]) == list(range(10))


def test_blocks_have_about_as_many_tokens():
    """A long prompt is a block of its own, short ones are many in one; none is left out, in their order."""
    settings = Settings(max_tokens=0)
    sizes = [1, 1, 300, 1, 1, 1, 1, 300, 1]
    records = [(i, Record(id=str(i), prompt="x" * 30 * n)) for i, n in enumerate(sizes)]
    blocks = cut(records, settings, 300)
    found = [[index for index, _ in block] for block in blocks]
    assert found == [[0, 1], [2], [3, 4, 5, 6], [7], [8]]
    assert len(cut(records[:1] * 2000, settings, 10**9)) == 2


def _actors():
    """Process ids of this machine's actors, by the title that Ray gives them."""
    lines = Path("/proc").glob("[0-9]*/cmdline")
    return [int(line.parent.name) for line in lines if b"ray::_Actor" in _read(line)]


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
        table = pyarrow.table({"id": ["a", "b", "c"], "prompt": ["abc", "hello", "x"], **columns})
        (block,) = _blocks(table, arguments["settings"], 10**6)["records"]
        actor = _Actor(str(tiny_target), arguments, str(tmp_path / "done"), begun())
        run, computed = actor._batch.run_indexed, []

        def noted(records):
            computed.extend(record.id for _, record in records)
            return run(records)

        monkeypatch.setattr(actor._batch, "run_indexed", noted)
        found = actor(pyarrow.table({"records": [block]}))
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
    from pyspec.errors import OptionError, ResumeMismatch

    _Actor(str(tiny_target), arguments, str(tmp_path))
    other = {**arguments, "settings": Settings(max_tokens=5, raw=True)}
    with pytest.raises(ResumeMismatch, match="max_tokens"):
        _Actor(str(tiny_target), other, str(tmp_path))
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
    block = pyarrow.table({"id": ["a", "b"], "prompt": ["abc"] * 2, "max_tokens": [None, "many"]})
    packed = pyarrow.table(_blocks(block, arguments["settings"], 10**6))
    found = _Actor(str(tiny_target), arguments, begun=begun())(packed)
    errors = dict(zip(found["id"], found["error"], strict=True))
    assert not errors["a"]
    assert "cannot be read" in errors["b"]


def test_ids_are_numbers_or_texts_and_other_columns_are_let_be(arguments, tiny_target):
    """A dataset has columns of its own, which may be called as a record's place or as what a former run wrote."""
    pyarrow = pytest.importorskip("pyarrow")
    own = {"index": ["x", "x"], "error": ["", "it failed"], "source": [1, 2], "line": ["a", "b"]}
    block = pyarrow.table({"id": [7, 8], "prompt": ["abc", "hello"], **own})
    packed = pyarrow.table(_blocks(block, arguments["settings"], 10**6))
    found = _Actor(str(tiny_target), arguments, begun=begun())(packed)
    assert sorted(zip(found["id"], found["error"])) == [("7", ""), ("8", "")]


def test_more_cpus_than_any_machine_has_is_an_error(arguments, tiny_target):
    """Ray would wait for such a machine for ever, without a word."""
    from pyspec.errors import OptionError

    many = {**arguments, "n_threads": 4}
    with (
        RayBatch(str(tiny_target), workers=1, **many) as batch,
        pytest.raises(OptionError, match="asks for 4 CPUs"),
    ):
        list(batch.run_indexed([(0, Record(id="a", prompt="a"))]))


@pytest.fixture
def deaths(monkeypatch, tmp_path):
    """A folder with a file for each worker that the prompt "poison" ended."""
    import pyspec.cluster.batch as module

    class Mortal(module._Actor):
        def answer(self, records):
            for index, record in records:
                if record.prompt == "poison":
                    (tmp_path / f"{os.getpid()}").touch()
                    os._exit(1)
                yield from super().answer([(index, record)])

    monkeypatch.setattr(module, "_Actor", Mortal)
    return tmp_path


@pytest.mark.usefixtures("deaths")
def test_a_record_that_ends_its_worker_fails_alone(arguments, tiny_target):
    """The others are answered, however many workers it costs."""
    records = [Record(id=str(i), prompt="poison" if i == 3 else "ab" * (i + 1)) for i in range(8)]
    with RayBatch(str(tiny_target), workers=1, **arguments) as batch:
        found = {result.index: result for result in batch.run_indexed(list(enumerate(records)))}
    assert sorted(found) == list(range(8))
    assert [i for i, result in found.items() if result.error] == [3]
    assert "died 3 times" in found[3].error.message


def test_a_row_that_ends_its_worker_is_its_own_error(arguments, tiny_target, deaths):
    """Of a dataset, too: Ray would try its block for ever. Two in a block cost three workers each, and one before."""
    rows = [{"id": i, "prompt": "poison" if i in (1, 3) else "ab" * (i + 1)} for i in range(5)]
    data = ray.data.from_items(rows)
    found = answer(data, str(tiny_target), workers=1, block_tokens=10**6, **arguments).take_all()
    assert {row["id"]: bool(row["text"]) for row in found} == {
        str(i): i not in (1, 3) for i in range(5)
    }
    errors = [row["error"] for row in found if row["error"]]
    assert ["died 3 times" in error for error in errors] == [True, True]
    assert len(list(deaths.iterdir())) == 7
