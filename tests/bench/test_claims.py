"""Every number in the pages that users read is made from bench/results, or is no measurement."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTANTS = Path(__file__).with_name("constants.txt")
MADE = re.compile(r"<!--= [^>]*-->.*?<!--/-->|<!-- (rules|drafts) -->.*?<!-- /\1 -->", re.DOTALL)
CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`]*`", re.DOTALL | re.MULTILINE)
COMMIT = re.compile(r'(?:"commit": ?"|at commit )([0-9a-f]{7,40})')
WORDS = r"times (?:plain|as fast|faster)|of plain|tokens/s|% (?:faster|slower|more tokens)"
SPEED = re.compile(rf"(?:\d+\.\d+|\.\d+|\d+) (?:{WORDS})")
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


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def written(page):
    """A page without what is made from results, without code, addresses and the numbers of lists, on one line."""
    text = read(page)
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
    known = [(page, phrase) for page, phrases in read_constants().items() for phrase in phrases]
    assert [(page, phrase) for page, phrase in known if phrase not in written(page)] == []


def test_a_page_knows_all_pages_with_figures(script):
    assert set(script("pages").PAGES) == set(read_constants())


def texts_of_users():
    """Every text outside bench/results, by its path."""
    listing = ["git", "-C", str(ROOT), "ls-files", "*.md"]
    named = subprocess.run(listing, capture_output=True, text=True, check=False).stdout.split()
    return [path for path in named if not path.startswith("bench/results/")]


def commits(paths):
    return {match[1] for path in paths for match in COMMIT.finditer(path.read_text("utf-8"))}


@pytest.mark.parametrize("page", texts_of_users())
def test_no_speed_outlives_its_file(page):
    """What was measured anew changes or breaks every place that tells it, for each is made from the file."""
    text = MADE.sub("_", read(page))
    for example in EXAMPLES.get(page, []):
        text = text.replace(example, "_")
    assert SPEED.findall(text) == []


FOLDERS = {path.parent.name for path in ROOT.glob("bench/results/*/*.json")}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_page_names_the_commits_of_its_files(folder):
    """A page that was not made again after its file tells figures of other code."""
    results = ROOT / "bench" / "results" / folder
    assert commits(results.glob("*.md")) == commits(results.glob("*.json"))


def test_every_commit_of_the_results_exists():
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=False)
    if known.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("needs git and the whole history")
    named = commits(p for p in ROOT.glob("bench/results/**/*") if p.suffix in (".json", ".md"))
    own = known.stdout.split()
    assert len(named) > 10
    assert {name for name in named if not any(one.startswith(name) for one in own)} == set()
