"""Every script of bench/ starts and does its work once, on something small."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from helpers.making import record, turn
from helpers.running import run
from quality import quality

from pyspec._lib import lib
from pyspec.cli.main import main

BENCH = Path(__file__).parents[2] / "bench"
TESTED = {
    "accepted", "attention", "batch", "blocks", "busy", "common", "companion", "compare", "confirm",
    "conversations", "everyday", "firsts", "grid", "hostile", "kernels", "llama_server", "load", "long",
    "mixture", "noise", "overhead", "pages", "parity", "places", "pool", "quality", "replay",
    "returning", "rows", "same_text", "schedules", "serve", "stretch",
}  # fmt: skip


def test_no_script_is_without_a_test() -> None:
    found = {path.stem for path in BENCH.glob("*.py")}
    assert found == TESTED


@pytest.mark.usefixtures("in_forks")
def test_what_a_round_costs_beside_decodes_is_shown(script, tiny_ascii: Path, capsys) -> None:
    """A row a mode, with a number in each column; loading takes time."""
    script("overhead").main(
        [str(tiny_ascii), "--modes", "none,plain", "--tokens", "8", "--runs", "1", "--prompt", "0"]
    )
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["| none", "| plain"]
    assert all(float(cell) >= 0.0 for row in rows[2:] for cell in row[1:6])
    assert all(float(row[8].strip(" |")) > 0.0 for row in rows[2:])


@pytest.mark.usefixtures("in_forks")
def test_what_noise_and_confirmation_cost_is_shown(
    script, tiny_ascii: Path, tmp_path, capsys
) -> None:
    """Above temperature 0 beside llama.cpp's own draw, and under a rule that looks at more than a row."""
    words = ["--temp", "0.8", "--modes", "auto,apart,confirmed", "--tokens", "8", "--runs", "1"]
    out = ["--prompt", "0", "--out", str(tmp_path / "overhead")]
    script("overhead").main([str(tiny_ascii), *words, *out])
    printed = capsys.readouterr().out
    assert printed in (tmp_path / "overhead" / "README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in printed.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| auto", "| apart", "| confirmed"]
    assert all(float(row[6]) > float(row[2]) for row in rows)


@pytest.mark.usefixtures("in_forks")
def test_what_a_prompt_costs_beyond_its_tokens_is_shown(script, tiny_ascii: Path, capsys) -> None:
    """A row a talk, and the time until the first prompt with its template and without."""
    script("overhead").show_prompts(str(tiny_ascii), 400, 1, 1)
    *rows, _, last = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| one question",
        "| ten turns",
        "| control words",
    ]
    assert all(int(row.split(" | ")[1]) > 200 for row in rows[2:])
    assert last.startswith("until the first prompt:")


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


def test_answers_are_compared(script, tiny_ascii: Path, tmp_path, capsys) -> None:
    """On a model this small every answer is the original's."""
    few = ["--prompts", "2", "--tokens", "8", "--drafts", "lookup", "--out", str(tmp_path)]
    script("parity").main([str(tiny_ascii), *few])
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| lookup")]
    assert rows == [f"| lookup | {t} | 2 | 2 | 0 | 0 |" for t in (0.0, 0.8)]
    assert rows[1] in (tmp_path / "README.md").read_text()


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


def test_noise_is_counted_along_ids_positions_and_seeds(script, tmp_path, capsys) -> None:
    """A line each, and none of them far from even; the page has the same table."""
    script("noise").main(["--draws", "400000", "--out", str(tmp_path / "noise")])
    printed = capsys.readouterr().out
    assert printed in (tmp_path / "noise" / "README.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in printed.splitlines()[2:]]
    assert [row[0] for row in rows] == ["ids", "positions", "seeds"]
    assert all(abs(float(value)) < 5 for row in rows for value in row[2:])


def test_kernels_are_timed_by_level(script, capsys) -> None:
    """A line for each kernel and width, with a time for each level of this machine; then all levels may be used again."""
    script("kernels").main(["--ids", "64,100", "--turns", "2"])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    levels = lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1
    assert {row[1] for row in rows} == {"64", "100"}
    assert {len(row) for row in rows} == {2 + levels}
    assert all(float(time) > 0 for row in rows for time in row[2:])


def test_texts_are_set_beside_plain_ones(script, tiny_ascii: Path, tmp_path, capsys) -> None:
    """A row for each draft and length, and a line for each answer that parts; the page has both."""
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question_id": 7, "category": "qa", "turns": ["abc abc abc"]}\n')
    same_text, words = (
        script("same_text"),
        ["--tokens", "8", "--drafts", "none,lookup", "--temp", "2"],
    )
    out = ["--parallel", "2", "--lengths", "1,4", "--out", str(tmp_path / "same_text")]
    same_text.main([str(tiny_ascii), str(questions), *words, *out])
    page = (tmp_path / "same_text" / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ")[:4] for line in page.splitlines()[-9:] if "|" in line]
    ways = [("none, 2 at once", 0)]
    ways += [(f"lookup{more}", k) for k in (1, 4) for more in ("", ", 2 at once")]
    assert rows[-5:] == [[name, str(k), "1", "1"] for name, k in ways]


def test_texts_that_were_compared_are_not_compared_again(
    script, questions: Path, tiny_ascii: Path, tmp_path, monkeypatch
) -> None:
    """A run that was interrupted goes on with the next draft or length; of other code or words it begins anew."""
    same_text, made = script("same_text"), []

    def at_once(_options, draft, length, _prompts) -> dict[str, str]:
        if length == 4 and len(made) == 2:
            raise KeyboardInterrupt
        made.append((draft, length))
        return {}

    monkeypatch.setattr(same_text, "at_once", at_once)
    monkeypatch.setattr(same_text, "beside", lambda *_: [])
    words = [str(tiny_ascii), str(questions), "--tokens", "4", "--drafts", "none,lookup"]
    words += ["--lengths", "1,4", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        same_text.main(words)
    made.append(("", 0))  # it goes on this time
    same_text.main(words)
    assert made == [("none", 0), ("lookup", 1), ("", 0), ("lookup", 4)]
    monkeypatch.setattr(same_text, "made_by", lambda *_: ("same_text", "", "another"))
    same_text.main(words)
    assert made[4:] == [("none", 0), ("lookup", 1), ("lookup", 4)]
    assert (tmp_path / "README.md").read_text().count("| lookup") == 4


def test_a_text_that_parts_is_told_with_how_near_it_was(script) -> None:
    """A row a way; a token that truncation left alone is farther than any gap, and a batch's rounds are not known."""
    same_text = script("same_text")
    way = "lookup, 8 at once"
    ties = [
        same_text.Parting("lookup", 4, "7", 2, 0.25, True),
        same_text.Parting(way, 4, "8", 5, None, None),
    ]
    found = same_text.SameText("c", "m", "", "t", 3, [("lookup", 4), (way, 4)], ties)
    found = same_text.msgspec.json.decode(same_text.msgspec.json.encode(found), type=type(found))
    assert "| lookup | 4 | 3 | 2 | 1 | 0 | 0 | 0.2500 nats | 0.2500 nats |" in found.page()
    assert f"| {way} | 4 | 3 | 2 | 0 | 0 | 1 | alone | alone |" in found.page()
    assert "question 7, token 3; 0.2500 nats, made again" in found.page()
    assert "question 8, token 6; alone, not known" in found.page()


def test_a_batchs_text_parts_at_a_token(script, open_plain, tiny_ascii: Path, monkeypatch) -> None:
    """The first of plain decoding's that it does not go on with."""
    same_text, llm = script("same_text"), open_plain(tiny_ascii)
    tokens = llm.tokenize(b"abcdef", add_bos=False)
    assert len(tokens) > 3
    monkeypatch.setattr(same_text, "lead", lambda _llm, _prompt, answer, _temp: float(len(answer)))
    plain = {name: same_text.TimedAnswer(1, tokens, "length", 0.0, 0.0, 0.0) for name in "xy"}
    texts = {"x": "abcdef", "y": llm.detokenize(tokens[:3]).decode() + "!"}
    prompts, how = {"x": [1], "y": [1]}, same_text.arguments("", [], temp=0.8)
    (found,) = same_text.beside(llm, ("d", 4), prompts, plain, texts, how)
    assert (found.question, found.place, found.gap, found.again) == ("y", 3, 3.0, None)


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


@pytest.mark.usefixtures("in_forks")
def test_starts_with_drafts_are_timed_beside_those_without(
    script, tiny_ascii: Path, capsys, tmp_path: Path
) -> None:
    """Two pairs are counted; the page is made of what is kept, and says what drafts add."""
    module = script("load")
    module.main([str(tiny_ascii), "--repeat", "2", "--out", str(tmp_path)])
    page = capsys.readouterr().out
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("|")]
    assert rows[2:] == ["| auto", "| none"]
    assert "; 2 pairs." in page
    (tmp_path / "README.md").unlink()
    script("common").write_one(tmp_path / "load.json", module.Loads)
    assert (tmp_path / "README.md").read_text().strip() == page.strip()


def test_what_drafts_add_is_the_middle_of_pairs(script) -> None:
    """A pair in which something else happened does not move it."""
    load = script("load")
    starts = {
        "auto": [load.Start(100.0 + n, 200.0) for n in (0, 1, 900)],
        "none": [load.Start(40.0, 90.0) for _ in range(3)],
    }
    found = load.Loads("", "", "", load.ModelFile("m.gguf", "", 0), starts)
    assert (found.added("load"), found.added("whole")) == (61.0, 110.0)


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


def test_no_conversation_of_a_few_has_a_control_token_of_its_own(script, capsys) -> None:
    """One template, a few conversations: all right, and counted."""
    assert script("conversations").main(["--count", "12", "--only", "gpt-oss"]) == 0
    assert "12 conversations" in capsys.readouterr().out
