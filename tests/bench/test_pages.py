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
    """Results of one run: strict at twice plain's speed on qa and at half on code, a rival at a third."""
    seconds = {"plain": (1.0, 1.0), "strict": (0.5, 2.0), "server-draft:2": (3.0, 3.0)}
    records = [
        record(who, i, turn([1, 2, 3], s), category=kind, peer=who.startswith("server"))
        for who, times in seconds.items()
        for i, (kind, s) in enumerate(zip(("qa", "code"), times, strict=True))
    ]
    save_page(collect(records, [], title="Default", command="pyspec bench"), tmp_path / "default")
    return tmp_path


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
