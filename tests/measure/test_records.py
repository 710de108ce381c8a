"""The journal of runs: resumed, cut, refused; and the speeds that it shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from measure.making import SETUP, record, turn

from pyspec.errors import InputError, ResumeMismatch
from pyspec.measure import records
from pyspec.measure.records import (
    TOTAL,
    RunLog,
    commit,
    geomean,
    hindsight,
    published,
    read_records,
    summarise,
)


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    """A second journal over the file knows what is done."""
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    again = RunLog(path, SETUP)
    assert again.has("plain", 1, 0)
    assert not again.has("plain", 1, 1)
    assert not again.has("strict", 1, 0)


def test_a_torn_last_line_is_removed(tmp_path: Path) -> None:
    """What a killed process left behind does not end up inside the next record."""
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    with path.open("ab") as out:
        out.write(b'{"who": "str')
    journal = RunLog(path, SETUP)
    journal.add(record("strict", 1, turn([1, 2])))
    assert [r.who for r in read_records(path)] == ["plain", "strict"]


def test_a_failed_run_is_tried_again(tmp_path: Path) -> None:
    """A record with an error does not count as done."""
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, error="no"))
    assert not RunLog(path, SETUP).has("plain", 1, 0)


def test_another_setup_is_refused_by_what_differs(tmp_path: Path) -> None:
    """Records of other threads cannot be continued."""
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    with pytest.raises(ResumeMismatch, match="threads was 1, is 2"):
        RunLog(path, msgspec.structs.replace(SETUP, threads=2))


def test_the_day_does_not_matter(tmp_path: Path) -> None:
    """A run may be resumed tomorrow."""
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    assert RunLog(path, msgspec.structs.replace(SETUP, day="2027-01-01")).has("plain", 1, 0)


def test_a_foreign_line_is_refused_with_its_number(tmp_path: Path) -> None:
    """The file is not overwritten blindly."""
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        RunLog(path, SETUP)


def test_a_published_command_names_no_folder() -> None:
    """Neither as a word nor behind an option's "="; modes keep their slashes."""
    words = ["/home/me/t.gguf", "--out=/home/me/r/x.json", "--modes", "margin/gap=1+strict", "a b"]
    assert published("pyspec", words) == (
        "pyspec t.gguf --out=x.json --modes margin/gap=1+strict 'a b'"
    )


# -- speeds ------------------------------------------------------------------------------------------------------------

FIVE = [1, 2, 3, 4, 5]


def test_speed_up_is_the_ratio_of_rates() -> None:
    """Half the time is twice the speed."""
    plain, fast = summarise([record("plain", 1, turn(FIVE, 2.0)), record("fast", 1, turn(FIVE))])
    assert plain.speeds[TOTAL].rate == 2.0
    assert fast.speeds["qa"].speed_up == fast.geomean == 2.0


def test_repeats_count_by_their_median() -> None:
    """One slow run of three does not move the figure."""
    runs = [record("plain", 1, turn(FIVE, s), repeat=i) for i, s in enumerate((1.0, 9.0, 1.0))]
    (summary,) = summarise(runs)
    assert summary.speeds[TOTAL].rate == 4.0
    assert summary.questions == 1


def test_a_category_is_the_sum_of_its_questions_and_the_spread_is_of_each() -> None:
    """Times add up; quartiles are of single speed-ups."""
    plain = [record("plain", q, turn(FIVE, 1.0)) for q in (1, 2)]
    fast = [record("fast", 1, turn(FIVE, 0.5)), record("fast", 2, turn(FIVE, 1.0))]
    speed = summarise([*plain, *fast])[1].speeds["qa"]
    assert speed.speed_up == pytest.approx(2.0 / 1.5)
    assert (speed.low, speed.mid, speed.high) == (1.25, 1.5, 1.75)


def test_failed_questions_are_left_out_on_both_sides() -> None:
    """Speed-ups are over questions that both answered."""
    records = [
        record("plain", 1, turn(FIVE, 1.0)),
        record("plain", 2, turn(FIVE, 7.0)),
        record("fast", 1, turn(FIVE, 0.5)),
        record("fast", 2, error="no"),
    ]
    assert summarise(records)[1].speeds[TOTAL].speed_up == 2.0


def test_counts_come_from_the_answers_statistics() -> None:
    """Acceptance over verified, tokens over rounds, relaxed over tokens."""
    block = {"rounds": 2, "verified": 4, "accepted": 3, "relaxed": 1,
             "timings": {"total_ms": 50.0, "other_ms": 1.0}}  # fmt: skip
    (summary,) = summarise([record("margin", 1, turn(FIVE, speculation=block))])
    assert (summary.acceptance, summary.mean_length, summary.relaxed) == (0.75, 2.5, 0.2)
    assert summary.other == 0.02


def test_hindsight_takes_the_best_length_of_each_category() -> None:
    """Plain is length 0, and there is no total: no single way reached it."""
    records = []
    for who, code, prose in (("plain", 1.0, 1.0), ("fixed:2+strict", 0.5, 2.0),
                             ("fixed:8+strict", 0.25, 4.0)):  # fmt: skip
        records.append(record(who, 1, turn(FIVE, code), category="code", exact=True))
        records.append(record(who, 2, turn(FIVE, prose), category="prose", exact=True))
    best = hindsight(summarise(records))
    assert best is not None
    assert {name: speed.speed_up for name, speed in best.speeds.items()} == {"code": 4, "prose": 1}
    assert best.geomean == pytest.approx(2.0)


def test_geometric_mean_of_nothing_is_zero() -> None:
    """And of something that stands still."""
    assert geomean([]) == geomean([1.0, 0.0]) == 0.0
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


def test_a_run_after_another_is_of_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New results change no code; anything else that git knows does, and what it does not know is nobody's."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *who, *words], text=True)

    code, page = tmp_path / "pyspec" / "records.py", tmp_path / "bench" / "results" / "page.md"
    for file in (code, page):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setattr(records, "__file__", str(code))
    git("init", "-q")
    assert commit() == ""
    git("add", ".")
    git("commit", "-qm", "one")
    short = git("rev-parse", "--short", "HEAD").strip()
    assert commit() == short
    page.write_text("2")
    assert commit() == short
    code.write_text("2")
    assert commit() == f"{short}+"
