"""Pages, pictures and the README's numbers come from the results alone."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from helpers.making import record, turn
from measure.report import collect, save_page

from pyspec.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(script):
    return script("pages")


@pytest.fixture
def folder(tmp_path):
    """Results of one run: strict at twice plain's speed on qa and at half on code, margin twice as fast, a rival at a third."""
    seconds = {"plain": (1.0, 1.0), "strict": (0.5, 2.0), "margin": (0.25, 1.0), "server-draft:2": (3.0, 3.0)}  # fmt: skip
    records = [
        record(who, i, turn([1, 2, 3], times[i % 2]), category=("qa", "code")[i % 2], peer=who.startswith("server"))
        for who, times in seconds.items()
        for i in range(4)
    ]  # fmt: skip
    save_page(collect(records, [], title="Default", command="pyspec bench"), tmp_path / "default")
    return tmp_path


def test_numbers_are_those_of_the_records(pages, folder):
    """By hand: ratios of 2, 2, 1/2, 1/2 have logarithms of mean 0 and deviation 0.800; 3.182 * 0.800 / 2 is 1.273."""
    found = pages.numbers(folder)
    assert found["default/strict/interval"] == "1.00 (0.28 to 3.57, 4 questions)"
    assert (found["default/strict/mean"], found["default/strict/worst"]) == ("1.00", "0.50")
    assert found["default/margin/over-strict"] == "2.00 (2.00 to 2.00)"
    assert found["default/plain/rate"] == "2"


def test_drawn_drafts_are_set_against_greedy_ones(pages):
    found = pages.rules(ROOT / "bench" / "results")["quality-good"]
    strict, *others = found.figures
    replace = pages.msgspec.structs.replace
    greedy = replace(strict, who=f"{strict.who}+apart", length=strict.length / 1.25)
    found.figures = [strict, *others, greedy]
    assert pages._drawn("q", found) == {f"q/{greedy.who}/drawn": "+25"}
    found.figures = [strict, replace(greedy, answers=1)]
    assert pages._drawn("q", found) == {}


def test_numbers_in_the_text_are_filled_in(pages, folder):
    text = "It is <!--= default/strict/worst -->9<!--/--> times.\n"
    new = pages.filled(text, folder)
    assert new == "It is <!--= default/strict/worst -->0.50<!--/--> times.\n"
    assert pages.filled(new, folder) == new


@pytest.mark.parametrize(("text", "words"), [
    ("<!-- rules -->, and no end", "has <!-- rules --> and no"),
    ("<!-- rules -->\n<!-- /rules --><!--= default/none/mean -->1<!--/-->", "default/none/mean"),
])  # fmt: skip
def test_a_readme_that_cannot_be_filled_is_refused(pages, folder, text, words):
    with pytest.raises(InputError, match=words):
        pages.filled(text, folder)


def test_the_pages_show_the_results_of_this_repository(pages):
    known, folder = (*pages.PAGES, *pages.CARDS), ROOT / "bench" / "results"
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in known}
    assert [page for page, text in texts.items() if pages.filled(text, folder) != text] == []


def test_one_command_makes_every_result():
    text = (ROOT / "bench" / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^(results/[^:=]+):(?! \w+ =)", text, re.MULTILINE)
    patterns = [target.replace("%", "*") for line in targets for target in line.split()]
    made = [*ROOT.glob("bench/results/*/*.json"), ROOT / "bench/results/grid/README.md"]
    names = [path.relative_to(ROOT / "bench").as_posix() for path in made]
    assert [name for name in names if not any(fnmatch(name, each) for each in patterns)] == []


def test_the_pages_are_those_of_the_results(pages):
    folder = ROOT / "bench" / "results"
    for name, results in pages.runs(folder).items():
        text = (ROOT / "bench" / "results" / name / "README.md").read_text(encoding="utf-8")
        assert text.startswith(pages.report.page(results).partition("\n## Setup")[0]), name
    for name, kind in pages.STORED.items():
        paths = sorted((folder / name).glob("*.json"))
        found = [pages.msgspec.json.decode(path.read_bytes(), type=kind) for path in paths]
        assert kind.page_of_all(found) == (folder / name / "README.md").read_text("utf-8"), name
    for name, found in pages.rules(folder).items():
        text = (ROOT / "bench" / "results" / name / "README.md").read_text(encoding="utf-8")
        page = pages.quality_page.quality_page(found)
        assert text.startswith(page.partition("\n## Setup")[0]), name
