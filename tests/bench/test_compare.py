"""`bench/compare.py`, as a user calls it."""

from functools import partial
from pathlib import Path

import msgspec
from compare import compare, engine_words
from helpers import running
from measure.records import read_run_records
from measure.report import Results

from pyspec.cli.main import main
from pyspec.cli.options import EngineOptions

run = partial(running.run, begin=partial(main, command=compare))


def test_table_on_stdout_and_files_in_out(measuring, tmp_path):
    done = run(*measuring, "--modes", "plain,strict,model+strict", "--title", "Tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].startswith("| plain | 1.00 |")
    assert "model+strict is skipped" in done.stderr
    results = msgspec.json.decode((tmp_path / "out" / "results.json").read_bytes(), type=Results)
    assert [s.who for s in results.summaries] == ["plain", "strict"]
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.startswith("# Tiny\n")
    assert str(tmp_path) not in page


def test_every_record_stands_for_itself(measuring, tmp_path):
    assert run(*measuring, "--modes", "plain", "--repeat", 2, "--seed", 7).returncode == 0
    records = read_run_records(tmp_path / "out" / "runs.jsonl")
    assert [(r.question_id, r.repeat) for r in records] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    for record in records:
        assert record.setup.seed == 7
        assert record.setup.threads == 1
        assert len(record.setup.files["target"].sha256) == 64
        assert record.setup.machine
        assert all(turn.text for turn in record.turns)


def test_the_engine_is_part_of_the_setup(measuring, tmp_path):
    """Records of other types of cells stand in no table with those; a peer would run without them."""
    done = run(*measuring, "--modes", "plain", "-ctk", "f32")
    assert done.returncode == 0, done.stderr
    (record, *_) = read_run_records(tmp_path / "out" / "runs.jsonl")
    assert record.setup.engine == "type_k 0"
    other = run(*measuring, "--modes", "plain")
    assert (other.returncode, "another setup" in other.stderr) == (1, True)
    peers = run(*measuring, "--peers", "llama_cpp", "-ctk", "f32")
    assert (peers.returncode, "--peers" in peers.stderr) == (2, True)


def test_a_page_tells_the_engine_without_folders():
    assert engine_words(EngineOptions()) == ""
    given = EngineOptions(lora_path=Path("/home/me/a.gguf"), tensor_split=[3.0, 1.0])
    assert engine_words(given) == "lora_path a.gguf, tensor_split [3.0, 1.0]"
