"""Every number in the pages that users read is made from bench/results, or is no measurement."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTANTS = Path(__file__).with_name("constants.txt")
MADE = re.compile(r"<!--= [^>]*-->.*?<!--/-->|<!-- (rules|drafts) -->.*?<!-- /\1 -->", re.DOTALL)
QUOTED = re.compile(r"<!--= ([^ ]+) -->")
TABLES = re.compile(r"<!-- (rules|drafts) -->")
CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`]*`", re.DOTALL | re.MULTILINE)
COMMIT = re.compile(r'(?:"commit": ?"|at commit )([0-9a-f]{7,40})')
SPEED = re.compile(
    r"(?:\d+\.\d+|\.\d+|\d+) (?:times (?:plain|as fast|faster)|of plain|tokens/s|% (?:faster|slower|more tokens))"
)
EXAMPLES = {".docs/pages/index.md": ['such as "214 tokens/s, 1.6 times plain decoding"']}
"""Lines of output that a page shows, by page."""
ADDRESS = re.compile(r"\[[\w.-]+\.md\]\([^)]*\)|\]\([^)]*\)|^\d+\. ", re.MULTILINE)


def read_constants():
    """Phrases with numbers that nobody measured, by page: versions, limits, formulas, names."""
    found: dict[str, list[str]] = {}
    page = ""
    for line in CONSTANTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            page = line.removeprefix("# ")
        elif line:
            found.setdefault(page, []).append(line)
    return found


def written(page):
    """A page without what is made from results, without code, addresses and the numbers of lists, on one line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for part in (MADE, CODE, ADDRESS):
        text = part.sub(" ", text)
    return " ".join(text.split())


def left_over(text, phrases):
    """Numbers of a text that are in none of these phrases, with what stands around them."""
    for phrase in sorted(phrases, key=len, reverse=True):
        text = text.replace(phrase, "_")
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in re.finditer(r"\d[\d.,]*", text)]


@pytest.mark.parametrize("page", sorted(read_constants()))
def test_no_number_is_written_by_hand(page):
    """A new one is made from results, by `bench/pages.py`, or is a constant and goes into constants.txt."""
    assert left_over(written(page), read_constants()[page]) == []


def test_every_constant_is_still_in_its_page():
    gone = [
        (page, phrase)
        for page, phrases in read_constants().items()
        for phrase in phrases
        if phrase not in written(page)
    ]
    assert gone == []


def test_a_page_knows_all_pages_with_figures(script):
    assert set(script("pages").PAGES) == set(read_constants())


def test_each_figure_has_a_file_that_a_command_makes(script, monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = script("pages")
    listed = pages.traced(ROOT / "bench" / "results")
    texts = {
        page: (ROOT / page).read_text(encoding="utf-8") for page in (*pages.PAGES, *pages.CARDS)
    }
    quoted = [(page, name) for page, text in texts.items() for name in QUOTED.findall(text)]
    assert sorted(quoted) == sorted((row[0], row[1]) for row in listed if row[2] != "-")
    assert all((ROOT / path).is_file() and command for *_, path, command in listed)
    filled = {(page, mark) for page, text in texts.items() for mark in TABLES.findall(text)}
    assert {(row[0], row[1].removeprefix("table of ")) for row in listed if row[2] == "-"} == filled


def texts_of_users():
    """Every text outside bench/results, by its path."""
    named = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=False
    ).stdout.split()
    return [path for path in named if not path.startswith("bench/results/")]


def by_hand(text, examples):
    for example in examples:
        text = text.replace(example, "_")
    return [match[0] for match in SPEED.finditer(MADE.sub("_", text))]


@pytest.mark.parametrize("page", texts_of_users())
def test_no_speed_outlives_its_file(page):
    """What was measured anew changes or breaks every place that tells it, for each is made from the file."""
    assert by_hand((ROOT / page).read_text(encoding="utf-8"), EXAMPLES.get(page, [])) == []


def test_a_speed_that_was_written_by_hand_is_found():
    made = "<!--= default/strict/mean -->1.15 times plain<!--/-->"
    assert by_hand(f"{made}, once 1.71 times plain", []) == ["1.71 times plain"]


@pytest.mark.parametrize(
    "folder", sorted({path.parent.name for path in ROOT.glob("bench/results/*/*.json")})
)
def test_a_page_names_the_commits_of_its_files(folder):
    """A page that was not made again after its file tells figures of other code."""
    pages, files = (
        {
            match[1]
            for path in (ROOT / "bench" / "results" / folder).glob(names)
            for match in COMMIT.finditer(path.read_text(encoding="utf-8"))
        }
        for names in ("*.md", "*.json")
    )
    assert pages == files


def test_a_figure_without_a_source_is_found():
    assert left_over("It was 1.37 times as fast on 2 cores.", ["2 cores"]) == [
        "It was 1.37 times as fast on _."
    ]


def test_every_commit_of_the_results_exists():
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=False)
    if known.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("needs git and the whole history")
    named = {
        match[1]
        for path in (ROOT / "bench" / "results").rglob("*")
        if path.suffix in (".json", ".md")
        for match in COMMIT.finditer(path.read_text(encoding="utf-8"))
    }
    own = known.stdout.split()
    assert len(named) > 10
    assert {name for name in named if not any(one.startswith(name) for one in own)} == set()
