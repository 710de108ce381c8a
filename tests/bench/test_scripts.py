"""Every script of bench/ starts and does its work once, on something small."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.making import record, turn
from helpers.running import run
from quality import quality

from pyspec._lib import lib
from pyspec.cli.main import main

BENCH = Path(__file__).parents[2] / "bench"
TESTED = {
    "pair",
    "accepted", "attention", "batch", "blocks", "busy", "common", "companion", "compare", "confirm",
    "everyday", "grid", "kernels", "llama_server", "long",
    "pages", "places", "pool", "quality", "replay",
    "returning", "rows", "serve", "stretch",
}  # fmt: skip


def test_no_script_is_without_a_test() -> None:
    found = {path.stem for path in BENCH.glob("*.py")}
    assert found == TESTED


def test_attention_is_timed_in_turns(script, tiny_ascii: Path, tmp_path, capsys) -> None:
    """A line for each length, with the share of the better setting; the page has it too."""
    few = ["--lengths", "16,40", "--repeat", "1", "--threads", "1", "--out", str(tmp_path)]
    script("attention").main([str(tiny_ascii), *few])
    page = capsys.readouterr().out
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ascii")]
    assert [(row[1], row[5] in ("on", "off"), float(row[6]) > 0) for row in rows] == [
        ("16", True, True),
        ("40", True, True),
    ]
    assert page.strip() == (tmp_path / "README.md").read_text().strip()


@pytest.mark.parametrize(
    ("p", "held"),
    [
        ({}, set()),
        ({"a": 0.04}, {"a"}),
        ({"a": 0.03, "b": 0.04}, set()),
        ({"a": 0.02, "b": 0.04}, {"a", "b"}),
        ({"a": 0.01, "b": 0.03, "c": 0.04}, {"a"}),
    ],
)
def test_holm_holds_claims_together(script, p, held):
    """The smallest against level / n, the next against level / (n - 1), until one fails."""
    assert script("confirm").holm(p) == held


def test_kernels_are_timed_by_level(script, capsys) -> None:
    """A line for each kernel and width, with a time for each level of this machine; then all levels may be used again."""
    script("kernels").main(["--ids", "64,100", "--turns", "2"])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    levels = lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1
    assert {row[1] for row in rows} == {"64", "100"}
    assert {len(row) for row in rows} == {2 + levels}
    assert all(float(time) > 0 for row in rows for time in row[2:])


def test_everyday_prompts_are_run_in_pairs(script, monkeypatch, tmp_path, capsys) -> None:
    """With drafts and without at the same seed, taking turns; a line for each prompt, and the mean."""
    everyday, asked = script("everyday"), []

    def answer(prompt, words):
        asked.append((prompt, tuple(words)))
        plain = "none" in words
        rate, total = (10.0, 1250.0) if plain else (15.0, 1000.0)
        times = {"tokens_per_second": rate, "prefill_ms": 250.0, "total_ms": total}
        return {
            "text": "x",
            "timings": times,
            "speculation": {"mean_length": 1.0 if plain else 1.8},
        }

    monkeypatch.setattr(everyday, "answer", answer)
    (tmp_path / "two.txt").write_text("one\ntwo\n")
    folder = ["--out", str(tmp_path / "everyday")]
    everyday.main(
        [str(tmp_path / "two.txt"), "--temp", "0.8", "--repeat", "2", *folder, "--", "-t", "1"]
    )
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    # 10 tokens in 1250 ms, the prompt's 250 included, against 11.25 in 1000
    assert [row[:4] for row in rows[:2]] == [["0.8", n, "1.500", "1.406"] for n in ("1", "2")]
    assert rows[2][2:4] == ["1.50 (1.50 to 1.50), lowest 1.50, 0 under 0.97", "1.41"]
    quoted = script("pages").numbers(tmp_path)
    assert (quoted["everyday/0.8/mean"], quoted["everyday/0.8/whole"]) == ("1.50", "1.41")
    assert "1.50 (1.50 to 1.50)" in (tmp_path / "everyday" / "README.md").read_text()
    assert [("none" in words) for _, words in asked[:4]] == [True, False, False, True]
    assert all(words[-2:] == ("-t", "1") or "none" in words for _, words in asked)


def test_answers_beside_programs_that_work(script, monkeypatch, tmp_path, capsys) -> None:
    """Two programs work while answers with threads that give way and with a fixed number take turns; none is left over."""
    busy, asked, started = script("busy"), [], []

    class Program:
        def __init__(self, _duty: float) -> None:
            started.append(self)
            self.ended = False

        def kill(self) -> None:
            self.ended = True

        def wait(self) -> None:
            assert self.ended

    def answer(_prompt, words):
        asked.append(("-t" in words, len(started)))
        return {"timings": {"tokens_per_second": 5.0 if "-t" in words else 40.0}}

    monkeypatch.setattr(busy, "start", Program)
    monkeypatch.setattr(busy, "answer", answer)
    few = ["--others", "0,2", "--draft", "none", "--repeat", "2"]
    busy.main([*few, "--out", str(tmp_path / "busy")])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [[others, "none", "40.0", "5.0", "8.00"] for others in ("0", "2")]
    turns = [True, False, False, True]
    assert asked == [(fixed, beside) for beside in (0, 2) for fixed in turns]
    assert all(program.ended for program in started)
    assert "| 2 | none | 40.0 |" in (tmp_path / "busy" / "README.md").read_text()


def test_small_gaps_get_a_page(script, tiny_ascii, tmp_path) -> None:
    """Their questions are answered by `bench/quality.py`; each rule has a line against strict, and few questions pass none."""
    confirm, asked = script("confirm"), tmp_path / "asked.jsonl"
    confirm.main(["questions", str(asked)])
    asked.write_text("\n".join(asked.read_text().splitlines()[:2]))
    rule = "margin/confirm=1+fixed:2"
    told = ["-m", tiny_ascii, "--draft", "lookup", "--questions", asked, "-n", "8", "-c", "512"]
    out = ["--variants", f"strict+fixed:2,{rule}", "--out", tmp_path / "out"]
    done = run(*told, *out, begin=partial(main, command=quality))
    assert done.returncode == 0, done.stderr
    kept = [str(tmp_path / "out" / "runs.jsonl"), str(asked), str(tmp_path / "run.json")]
    confirm.main(["store", *kept, "--title", "a tiny pair"])
    confirm.main(["page", str(tmp_path)])
    page = (tmp_path / "README.md").read_text()
    assert f"| {rule} | +0.0 % (+0.0 to +0.0); 0.0000 (0.0000 to 0.0000) |" in page
    (stored,) = confirm.runs_in(tmp_path).values()
    assert f"{stored.day}{confirm.code_of(stored.commit)}." in page
    assert "within every bound: none" in page
    assert confirm.figures(tmp_path)[f"run/{rule}/gaps"] == "0.0000 (0.0000 to 0.0000)"


def test_a_loss_says_how_far_it_is_beyond_its_bound(script) -> None:
    """Its upper end, not its mean."""
    confirm = script("confirm")
    assert confirm._loss(confirm.LossFigures(0.0, 0.015, 9, 9), "distinct-4") == (
        "+0.000, up to +0.015, **0.005 beyond**"
    )
    assert (
        confirm._loss(confirm.LossFigures(0.0, 0.005, 9, 9), "distinct-4") == "+0.000, up to +0.005"
    )


def test_a_gain_is_between_those_of_its_questions(script) -> None:
    """Twice the tokens a verify in one answer of two, none in the other: the ends are those of drawing one of them twice."""
    confirm = script("confirm")

    def answers(*rounds: int) -> list[object]:
        return [
            record("a", i, turn([1] * 8, speculation={"rounds": n})) for i, n in enumerate(rounds)
        ]

    assert confirm.gain_between(answers(2, 4), answers(4, 4)) == (1.0, 2.0)


@pytest.mark.parametrize("contender", ["llama_cpp", "pyspec:none", "pyspec"])
def test_each_way_to_answer_has_a_speed(script, tiny_ascii: Path, contender: str) -> None:
    pool = script("pool")
    llm = pool.opened(contender, SimpleNamespace(model=str(tiny_ascii), threads=1))
    figures = pool.measure(llm, 4)
    llm.close()
    assert list(figures) == ["first", "pool", "stream"]
    assert all(speed > 0.0 for speed in figures.values())


def test_what_a_pool_keeps_is_its_speed_over_the_first_threads(script) -> None:
    one = {"name": "pyspec", "first": 80.0, "pool": 40.0, "stream": 20.0}
    assert script("pool").PoolResults.kept(one) == 0.5


@pytest.mark.usefixtures("in_forks")
def test_a_long_prompt_is_timed_beside_its_peer(script, tiny_ascii: Path, capsys) -> None:
    """A row a contender; "auto" says which attention it chose."""
    words = ["--contenders", "pyspec,llama_cpp", "--prompt", "40", "--tokens", "9", "--repeat", "1"]
    script("long").main([str(tiny_ascii), *words])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[4]) for row in rows] == [
        ("| pyspec", "flash |"),
        ("| llama_cpp", "its own |"),
    ]
    assert rows[0][3] == "1.00"
    assert float(rows[1][3]) > 0.0
