"""The same records over Ray Data, on a local cluster of two workers."""

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

from pyspec.batch import Batch  # noqa: E402
from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.cluster import _Rows, answer  # noqa: E402
from pyspec.errors import OptionError, ResumeMismatch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    # what Ray warns of itself
    *[
        pytest.mark.filterwarnings(f"ignore::{kind}Warning")
        for kind in ("Deprecation", "Future", "User", "Resource")
    ],
]


PROMPTS = ["abc", "hello", "once upon a time", "the end"] * 3


@pytest.fixture
def cluster():
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


@pytest.mark.filterwarnings("error:.*concurrency.*")
def test_datasets_in_and_out(arguments, tiny_target, tmp_path):
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


def test_rows_are_read_as_they_are(arguments, tiny_target):
    """An id may be a number, other columns are the dataset's own, and a row that cannot be read is its own error."""
    pyarrow = pytest.importorskip("pyarrow")
    own = {
        "index": ["x"] * 3,
        "error": ["", "it failed", ""],
        "source": [1, 2, 3],
        "line": ["a"] * 3,
    }
    asked = {"id": [7, 8, 9], "prompt": ["abc"] * 3, "max_tokens": ["3", None, "many"]}
    found = _Rows(str(tiny_target), arguments)(pyarrow.table({**asked, **own}))
    errors = dict(zip(found["id"], found["error"], strict=True))
    assert (errors["7"], errors["8"]) == ("", "")
    assert "cannot be read" in errors["9"]
