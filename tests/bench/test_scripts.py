"""Every script of bench/ starts and does its work once, on something small."""

import json
import shutil
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from measure.records import ModelFile


def test_attention_is_timed_in_turns(script, tiny_ascii, tmp_path, capsys):
    few = ["--lengths", "16,40", "--repeat", "1", "--threads", "1", "--out", str(tmp_path)]
    script("attention").main([str(tiny_ascii), *few])
    page = capsys.readouterr().out
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ascii")]
    assert [row[1] for row in rows] == ["16", "40"]
    assert all(row[5] in ("on", "off") and float(row[6]) > 0 for row in rows)
    assert page.strip() == (tmp_path / "README.md").read_text().strip()


def test_batches_are_over_the_loop_and_over_plain(script):
    """And memory is what is left without the KV cells of both: 500 - 100 - 360 of 400."""
    batch = script("batch")
    seconds = {"loop": 2.0, "plain:1": 1.0, "speculative:1": 2.0, "plain:16": 0.5}
    memory = {"loop": (400.0, 40.0), "plain:16": (500.0, 100.0)}
    found = []
    for name, time in seconds.items():
        peak, kv = memory.get(name, (0.0, 0.0))
        known = {"tokens": 100, "peak": peak, "kv": kv}
        runs = [{**batch.NOT_KNOWN, **known, "rate": 100 / (time * k)} for k in (0.5, 1, 2)]
        found.append({"name": name, **script("common").medians(runs)})
    results = batch.BatchResults(
        title="Batch", command="python bench/batch.py", day="2026-01-01", machine="a machine", threads=2,
        target=ModelFile("t.gguf", "ab", 9), records=64, max_tokens=96, repeat=3, contenders=found,
    )  # fmt: skip
    rows = {line.split(" | ")[0].strip("| "): line for line in results.table().splitlines()}
    assert "| 200.0 | 4.00 | 1.00 | 500 | 100 | +10 % |" in rows["plain:16"]
    assert "| 50.0 | 1.00 | 0.50 |" in rows["speculative:1"]


def test_batches_of_every_contender_are_timed(script, tiny_ascii, questions, tmp_path, capsys):
    asked = questions("abc 0", "abc 1", "abc 2")
    few = ["--records", "3", "--tokens", "4", "--parallel", "2", "--threads", "1", "--repeat", "1"]
    words = [str(tiny_ascii), str(asked), *few, "--ctx", "128", "--out", str(tmp_path / "tiny.json")]  # fmt: skip
    script("batch").main(words)
    found = json.loads((tmp_path / "tiny.json").read_text())["contenders"]
    assert [one["name"] for one in found] == ["loop", "plain:2", "speculative:2"]
    assert {one["tokens"] for one in found} == {12.0}
    assert min(one["rate"] for one in found) > 0.0
    assert "plain:2" in capsys.readouterr().out
    assert (tmp_path / "README.md").exists()


def test_everyday_prompts_are_run_in_pairs(script, monkeypatch, tmp_path, capsys):
    everyday, asked = script("everyday"), []

    def answer(prompt, words):
        asked.append((prompt, tuple(words)))
        plain = "none" in words
        rate, total = (10.0, 1250.0) if plain else (15.0, 1000.0)
        draft, verify, rounds = (0.0, 900.0, 10) if plain else (75.0, 600.0, 6)
        times = {"draft_ms": draft, "verify_ms": verify, "tokens_per_second": rate}
        times |= {"prefill_ms": 250.0, "total_ms": total}
        told = {"mean_length": 1.0 if plain else 1.8, "times_plain": None if plain else 1.44}
        told["rounds"] = rounds
        return {"text": "x", "timings": times, "speculation": told}

    monkeypatch.setattr(everyday, "answer", answer)
    (tmp_path / "two.txt").write_text("one\ntwo\n")
    folder = ["--out", str(tmp_path / "everyday")]
    how = ["--kept", "cold", "--temp", "0.8", "--repeat", "2"]
    everyday.main([str(tmp_path / "two.txt"), *how, *folder, "--", "-t", "1"])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    # 10 tokens in 1250 ms, the prompt's 250 included, against 11.25 in 1000
    assert [row[:5] for row in rows[:2]] == [["0.8", n, "1.500", "1.440", "1.406"] for n in "12"]
    # of 750 ms behind the prompt, 75 made drafts, and 6 decodes took 60 more than 6 of the 10 that took 900
    assert [row[6:8] for row in rows] == 3 * [["10.0 %", "8.0 %"]]
    mean = "1.50 (1.50 to 1.50), lowest 1.50, 0 under 0.97"
    assert rows[2][2:5] == [mean, "2 of 2 within 5 %", "1.41"]
    quoted = script("pages").numbers(tmp_path)
    assert (quoted["everyday/0.8/mean"], quoted["everyday/0.8/whole"]) == ("1.50", "1.41")
    assert "1.50 (1.50 to 1.50)" in (tmp_path / "everyday" / "README.md").read_text()
    assert [("none" in words) for _, words in asked[:4]] == [True, False, False, True]
    assert all(words[-2:] == ("-t", "1") or "none" in words for _, words in asked)


@pytest.mark.parametrize("contender", ["llama_cpp", "pyspec:none", "pyspec"])
def test_each_way_to_answer_has_a_speed(script, tiny_ascii, contender):
    pool = script("pool")
    llm = pool.opened(contender, SimpleNamespace(model=str(tiny_ascii), threads=1))
    figures = pool.measure(llm, 4)
    llm.close()
    assert list(figures) == ["first", "pool", "stream"]
    assert all(speed > 0.0 for speed in figures.values())


def test_a_long_prompt_is_timed_beside_its_peer(script, tiny_ascii, capsys):
    words = ["--contenders", "pyspec,llama_cpp", "--prompt", "40", "--tokens", "9", "--repeat", "1"]
    script("long").main([str(tiny_ascii), *words])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    attention = [(row[0], row[4]) for row in rows]
    assert attention == [("| pyspec", "flash |"), ("| llama_cpp", "its own |")]
    assert rows[0][3] == "1.00"
    assert float(rows[1][3]) > 0.0


def test_a_pair_is_recorded_and_given_a_prior(script, tiny_ascii, tmp_path):
    draft, rounds = tmp_path / "draft.gguf", tmp_path / "rounds.gz"
    shutil.copy(tiny_ascii, draft)
    words = [
        "-m", str(tiny_ascii), "--draft", str(draft), "--trust-model", "-c", "1024", "-t", "1",
        "--category", "writing", "--seconds", "1", "-n", "8", "--draft-max", "3", "--prior", "--rounds", str(rounds),
    ]  # fmt: skip
    done = CliRunner().invoke(script("pair").pair, words)
    assert done.exit_code == 0, done.output
    assert 0.0 <= float(done.stdout.split(", ")[0]) <= 1.0
    assert rounds.stat().st_size > 0
    assert draft.with_suffix(".prior.json").is_file()
