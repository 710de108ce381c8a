"""Pages, pictures and the README's numbers come from the results alone."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from shutil import copytree

import pytest
from helpers.making import record, turn
from measure.report import collect, save_page

from pyspec.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(script):
    return script("pages")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of one run: strict at twice plain's speed on qa and at half on code, a rival at a third."""
    seconds = {"plain": (1.0, 1.0), "strict": (0.5, 2.0), "server-draft:2": (3.0, 3.0)}
    records = [
        record(who, i, turn([1, 2, 3], s), category=kind, peer=who.startswith("server"))
        for who, times in seconds.items()
        for i, (kind, s) in enumerate(zip(("qa", "code"), times, strict=True))
    ]
    save_page(collect(records, [], title="Default", command="pyspec bench"), tmp_path / "default")
    return tmp_path


def test_a_row_has_the_worst_kind_and_the_best_rival(pages, folder: Path) -> None:
    """Losing kinds are in; the figure leads to the page; beside it is the plain speed of the same run."""
    row = pages.readme_table(folder).splitlines()[-1]
    assert row == (
        "| Default | 0 | 2 | [**1.00**](bench/results/default/README.md) | 0.50 code "
        "| 0.33 server-draft:2 | a machine, - |"
    )


def test_each_temperature_has_a_row_with_its_own_plain_speed(pages, folder: Path) -> None:
    """A machine that was slower in one run tells nothing of the other."""
    copytree(folder / "default", folder / "default-t08")
    path = folder / "default-t08" / "results.json"
    warm = pages.msgspec.json.decode(path.read_bytes(), type=pages.Results)
    warm.setup = pages.msgspec.structs.replace(warm.setup, temperature=0.8)
    warm.title = "Default, T 0.8"
    warm.summaries[0].speeds["total"].rate = 7.0
    path.write_bytes(pages.msgspec.json.encode(warm))
    rows = [line.split(" | ")[:3] for line in pages.readme_table(folder).splitlines()[-2:]]
    assert rows == [["| Default", "0", "2"], ["| Default", "0.8", "7"]]


def test_an_interval_is_over_questions_where_they_are_known(pages, folder: Path) -> None:
    """Older results have the kinds alone, and the table says which."""
    found = pages.runs(folder)["default"]
    strict = next(s for s in found.summaries if s.who == "strict")
    strict.ratios = {"qa": [2.0, 2.2], "code": [0.5, 0.4]}
    assert pages._interval(strict).endswith(", 4 questions)")
    strict.ratios = {}
    assert pages._interval(strict) == ""
    strict.speeds["math"] = strict.speeds["qa"]
    assert pages._interval(strict).endswith(", 3 kinds)")


def test_a_rival_is_named_for_what_was_run(pages, folder: Path) -> None:
    """Another program's best may be without drafts. Others' columns are not named."""
    found = pages.runs(folder)["default"]
    (drafted,) = (s for s in found.summaries if s.peer)
    bare = pages.msgspec.structs.replace(drafted, who="server", geomean=0.9)
    other = pages.msgspec.structs.replace(drafted, who="llama_cpp", geomean=3.0)
    assert pages._best_peer([drafted, other]) == "0.33 server-draft:2"
    assert pages._best_peer([drafted, bare]) == "0.90 server"
    assert pages._best_peer([other]) == "-"


def test_the_rows_of_the_readme_name_their_processors_and_commits(pages) -> None:
    """Results of different machines or code do not stand together unmarked."""
    rows = pages.readme_table(ROOT / "bench" / "results").splitlines()[2:]
    assert all(
        re.fullmatch(
            r"(AMD|Intel|NVIDIA) [\w ]+, [0-9a-f]{7,}\+?", row.strip("| ").split(" | ")[-1]
        )
        for row in rows
    )


@pytest.mark.parametrize("page", ["default", "default-t08"])
def test_the_next_run_has_a_rival_without_drafts(page: str) -> None:
    text = (ROOT / "bench" / "Makefile").read_text(encoding="utf-8")
    line = next(
        line for line in text.splitlines() if f"results/{page}/results.json" in line and ":" in line
    )
    rule = text.partition(line)[2].partition("\n\n")[0]
    assert "--peers server,server-eagle3" in rule


def test_a_row_says_where_a_figure_was_not_measured(pages) -> None:
    """A page without ROUGE-L cannot be worse in it."""
    rows = pages.rules_table(ROOT / "bench" / "results").splitlines()[2:]
    found = pages.rules(ROOT / "bench" / "results")
    names = [name for name in pages.RULES if name in found]
    for name, row in zip(names, rows, strict=True):
        margin = next(one for one in found[name].figures if one.who == "margin+fixed:4")
        assert ("ROUGE-L not measured" in row) is ("ROUGE-L" not in margin.measures)


def test_a_batch_stands_beside_batching_alone(pages) -> None:
    """Each contender can be quoted, plain decoding of as many at once among them."""
    known = pages.numbers(ROOT / "bench" / "results")
    assert {"batch/bf16/plain:16", "batch/bf16/speculative:16"} <= known.keys()


def test_drawn_drafts_are_set_against_greedy_ones(pages) -> None:
    """By tokens a verify, of as many answers; a variant without its twin tells nothing."""
    found = pages.rules(ROOT / "bench" / "results")["quality-good"]
    strict, *others = found.figures
    greedy = pages.msgspec.structs.replace(
        strict, who=f"{strict.who}+apart", length=strict.length / 1.25
    )
    found.figures = [strict, *others, greedy]
    assert pages._drawn("q", found) == {f"q/{greedy.who}/drawn": "+25"}
    found.figures = [strict, pages.msgspec.structs.replace(greedy, answers=1)]
    assert pages._drawn("q", found) == {}


def test_numbers_in_the_text_are_filled_in(pages, folder: Path) -> None:
    """By folder, mode and figure; what is around them stays, and doing it again changes nothing."""
    text = "<!-- results -->\n<!-- /results -->\nIt is <!--= default/strict/worst -->9<!--/--> times.\n"
    new = pages.filled(text, folder)
    assert new.endswith("It is <!--= default/strict/worst -->0.50<!--/--> times.\n")
    assert "| Default |" in new
    assert pages.filled(new, folder) == new


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- results -->, and no end", "has <!-- results --> and no"),
        (
            "<!-- results -->\n<!-- /results --><!--= default/none/mean -->1<!--/-->",
            "default/none/mean",
        ),
    ],
)
def test_a_readme_that_cannot_be_filled_is_refused(
    pages, folder: Path, text: str, words: str
) -> None:
    """Nothing is appended somewhere, and no number is left standing that nobody measured."""
    with pytest.raises(InputError, match=words):
        pages.filled(text, folder)


def test_redrawing_gives_the_same_files(pages, folder: Path) -> None:
    """The page, the results and every picture, byte by byte."""
    pages.redraw(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for path in folder.rglob("*.svg"):
        path.unlink()
    pages.redraw(folder)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_pages_show_the_results_of_this_repository(pages) -> None:
    texts = {
        page: (ROOT / page).read_text(encoding="utf-8") for page in (*pages.PAGES, *pages.CARDS)
    }
    folder = ROOT / "bench" / "results"
    assert [page for page, text in texts.items() if pages.filled(text, folder) != text] == []


def test_one_command_makes_every_result() -> None:
    """What stands in bench/results is a target of bench/Makefile."""
    text = (ROOT / "bench" / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^(results/[^:=]+):(?! \w+ =)", text, re.MULTILINE)
    patterns = [target.replace("%", "*") for line in targets for target in line.split()]
    made = [*ROOT.glob("bench/results/*/*.json"), ROOT / "bench/results/grid/README.md"]
    names = [path.relative_to(ROOT / "bench").as_posix() for path in made]
    assert [name for name in names if not any(fnmatch(name, each) for each in patterns)] == []


def test_the_pages_are_those_of_the_results(pages) -> None:
    """No page was written by hand, pictures aside."""
    folder = ROOT / "bench" / "results"
    for name, results in pages.runs(folder).items():
        text = (ROOT / "bench" / "results" / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith(pages.report.page(results).partition("\n## Setup")[0]), name
    for name, kind in pages.COMPARED.items():
        page = ROOT / "bench" / "results" / name / "README.md"
        for path in page.parent.glob("*.json"):
            found = pages.msgspec.json.decode(path.read_bytes(), type=kind)
            assert found.table() in page.read_text(encoding="utf-8"), path
    for name, found in pages.rules(folder).items():
        text = (ROOT / "bench" / "results" / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith(pages.quality_page.quality_page(found).partition("\n## Setup")[0]), (
            name
        )
