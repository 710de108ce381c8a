"""The numbers that README and METHODS quote, computed again from the stored results without the programs that fill them in."""

import json
import re
from functools import partial
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
T_95 = {5: 2.571, 11: 2.201, 12: 2.179, 23: 2.069, 25: 2.060}
"""Quantiles of Student's t for a 95 % interval, by degrees of freedom, as statistical tables print them."""


def load(folder, name):
    return json.loads((RESULTS / folder / name).read_text(encoding="utf-8"))


def spread(values):
    half = T_95[len(values) - 1] * stdev(values) / sqrt(len(values))
    return fmean(values), fmean(values) - half, fmean(values) + half


def speed(folder, who, figure):
    """A figure of `bench/compare.py`: categories weigh alike, questions make the interval."""
    found = {each["who"]: each for each in load(folder, "results.json")["summaries"]}
    one = found[who]
    kinds = [one["speeds"][name]["speed_up"] for name in one["speeds"] if name != "total"]
    mean = exp(fmean(map(log, kinds)))
    logs = [log(ratio) for ratios in one["ratios"].values() for ratio in ratios]
    if figure == "rate":
        return f"{one['speeds']['total']['rate']:.0f}"
    if figure == "over-strict":
        strict = [log(ratio) for ratios in found["strict"]["ratios"].values() for ratio in ratios]
        logs = [a - b for a, b in zip(logs, strict, strict=True)]
        return "{:.2f} ({:.2f} to {:.2f})".format(*map(exp, spread(logs)))
    if figure == "interval":
        middle, low, high = spread(logs)
        ends = mean * exp(low - middle), mean * exp(high - middle)
        return f"{mean:.2f} ({ends[0]:.2f} to {ends[1]:.2f}, {len(logs)} questions)"
    return f"{mean if figure == 'mean' else min(kinds):.2f}"


def quality(folder, who, figure):
    """A figure of `bench/quality.py`, over strict verification of the same questions."""
    found = {each["who"]: each for each in load(folder, "quality.json")["figures"]}
    if figure == "gain":
        return f"{100 * (found[who]['gain'] - 1):+.0f}"
    if figure == "drawn":
        drawn, greedy = found[who.removesuffix("+apart")], found[who]
        return f"{100 * (drawn['length'] / greedy['length'] - 1):+.0f}"
    over = found[who]["measures"]["distinct-4" if figure == "distinct" else figure]["over"]
    return "{mean:+.3f} ({low:+.3f} to {high:+.3f})".format(**over)


def everyday(folder, temperature, figure):
    """A figure of `bench/everyday.py`: medians of a prompt's pairs, then over prompts."""
    prompts = load(folder, "everyday.json")["pairs"][temperature].values()
    if figure == "rate":
        return f"{fmean(pair['plain'] for pairs in prompts for pair in pairs):.0f}"
    ratios = [median(pair["drafted"] / pair["plain"] for pair in pairs) for pairs in prompts]
    mean, low, high = spread(ratios)
    if figure == "interval":
        return f"{low:.2f} to {high:.2f}"
    found = {"mean": f"{mean:.2f}", "worst": f"{min(ratios):.2f}", "prompts": f"{len(ratios)}"}
    return found[figure]


def batch(kind, who):
    rates = {each["name"]: each["rate"] for each in load("batch", f"{kind}.json")["contenders"]}
    return f"{rates[who] / rates['plain:1']:.2f}"


def computed(name):
    """A number by its name, `folder/who/figure`."""
    folder, _, rest = name.partition("/")
    who, _, figure = rest.rpartition("/")
    if folder == "batch":
        return batch(who, figure)
    kinds = [("everyday", everyday), ("quality", quality)]
    return next((f for start, f in kinds if folder.startswith(start)), speed)(folder, who, figure)


def quoted():
    """Each number that the two pages show, with its name, by page."""
    shown = partial(re.compile(r"<!--= ([^ ]+) -->(.*?)<!--/-->", re.DOTALL).findall)
    pages = [(page, (ROOT / page).read_text("utf-8")) for page in ("README.md", "METHODS.md")]
    found = [(page, *each) for page, text in pages for each in shown(text)]
    return [pytest.param(name, value, id=f"{page}-{name}") for page, name, value in found]


@pytest.mark.parametrize(("name", "value"), quoted())
def test_a_number_follows_from_its_results(name, value):
    assert computed(name) == value


def test_forty_numbers_and_more_are_computed_again():
    assert len(quoted()) >= 40
