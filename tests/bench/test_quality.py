"""`bench/quality.py`, as a user calls it."""

from functools import partial

import msgspec
import pytest
from helpers import running
from measure.quality import NATS, VARIETY, QualityResults
from quality import quality

from pyspec.cli.main import main

run = partial(running.run, begin=partial(main, command=quality))


def test_variants_are_judged_and_the_page_is_written(measuring, tmp_path):
    done = run(*measuring)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    results = msgspec.json.decode((out / "quality.json").read_bytes(), type=QualityResults)
    by_name = {figures.who: figures for figures in results.figures}
    control = by_name["strict+fixed:4"]
    assert (control.measures[NATS].over.mean, control.looped_p, control.answers) == (0.0, 1.0, 2)
    nats = control.measures[NATS].mean
    assert by_name["plain"].measures[NATS].mean == pytest.approx(nats, abs=1e-3)
    assert results.verdict in done.stdout
    assert results.verdict in (out / "README.md").read_text()


def test_seeds_are_joined_by_question_where_tokens_are_drawn(measuring, tmp_path):
    """Strict says what plain says with each seed; the page says how tokens were drawn, and compares the seeds."""
    wanted = ["--temp", "0.8", "--repeat", "3", "--variants", "strict+fixed:2,plain,margin+random@1"]  # fmt: skip
    done = run(*measuring, *wanted)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "README.md").read_text()
    assert "6 answers a variant to 2 questions where not said otherwise" in page
    assert "top-k 40" in page
    stored = (tmp_path / "out" / "quality.json").read_bytes()
    results = msgspec.json.decode(stored, type=QualityResults)
    strict, plain, random = results.figures
    assert (strict.answers, plain.answers, random.answers) == (6, 6, 3)
    assert strict.measures[VARIETY].mean == plain.measures[VARIETY].mean
    assert strict.measures[VARIETY].questions == 2
