"""Mixtures of experts on devices with little memory: experts stay in main memory first, or as many as asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from offload.test_fit import found_by

Run = Callable[..., str]

SHARES = (0.01, 0.15, 0.4, 0.6, 0.85, 1.3)
"""Of what the whole model takes: memory of the devices that it is put on."""

_SIZES = """
path, shares = sys.argv[2], json.loads(sys.argv[3])
options = {"n_ctx": 512}
def split(llm, one):
    return {"layers": llm.model_params.n_gpu_layers, "experts": llm.places.experts, "used": one.most_used, "refused": one.refused}
llm, one = open_(path, 1 << 33, -1, **options)
whole = one.most_used
llm.close()
found = []
for share in shares:
    llm, one = open_(path, share * whole, "auto", **options)
    llm.eval([5, 6, 7])
    row = {**split(llm, one), "memory": int(share * whole)}
    llm.close()
    if row["experts"]:
        llm, one = open_(path, 1 << 33, row["layers"], n_cpu_moe=row["experts"] - 1, **options)
        row["next"] = one.most_used
        llm.close()
    found.append(row)
end(found)
"""


@pytest.fixture(scope="module")
def sizes(in_child: Run, eight_mixtures: Path) -> list[dict[str, Any]]:
    """What came of a mixture of eight layers and an output on six devices."""
    rows: list[dict[str, Any]] = found_by(in_child, _SIZES, eight_mixtures, json.dumps(SHARES))
    return rows


@pytest.mark.parametrize("i", range(len(SHARES)))
def test_never_more_than_there_is(sizes: list[dict[str, Any]], i: int) -> None:
    """No allocation is refused, and a tenth stays free."""
    assert not sizes[i]["refused"]
    assert sizes[i]["used"] <= 0.9 * sizes[i]["memory"]


@pytest.mark.parametrize("i", range(len(SHARES)))
def test_experts_go_first_and_no_more_than_must(sizes: list[dict[str, Any]], i: int) -> None:
    """While any are on the device, all layers are; one layer's more would not fit."""
    row = sizes[i]
    assert row["layers"] in (0, 9) or row["experts"] == 8
    assert not row["experts"] or row["next"] > 0.9 * row["memory"]


def test_splits_differ(sizes: list[dict[str, Any]]) -> None:
    splits = [(row["layers"], -row["experts"]) for row in sizes]
    assert splits == sorted(splits)
    assert splits[-1] == (9, 0)
    assert len(set(splits)) >= 5


def test_answers_are_the_processors_and_the_line_says_where(
    in_child: Run, eight_mixtures: Path
) -> None:
    """For target and draft, with experts of some layers, of all, and single tensors in main memory."""
    code = """
path = sys.argv[2]
one, name = device(1 << 32)
ways = (
    {"n_gpu_layers": 0}, {"n_cpu_moe": 3}, {"n_cpu_moe": -1, "draft_n_cpu_moe": 2},
    {"override_tensor": f"blk.1.ffn_up_exps=CPU,attn_q={name}", "draft_override_tensor": {"attn": "CPU"}},
)
texts, lines, used = [], [], []
for how in ways:
    llm = SpeculativeLlama(path, draft=path, trust=True, n_ctx=512, length="fixed:4", devices=name,
        **{"n_gpu_layers": -1, **how})
    texts.append(llm.create_completion("abc", max_tokens=32, temperature=0)["choices"][0]["text"])
    lines.append(llm.placed.partition(" on ")[0])
    used.append(one.most_used)
    llm.close()
end([len(set(texts)), lines])
"""
    kinds, lines = found_by(in_child, code, eight_mixtures)
    assert kinds == 1
    whole = "9 of 9 layers of mixture"
    assert lines == [
        "",
        f"{whole} (experts of 3 layers in main memory), {whole}",
        f"{whole} (experts of all layers in main memory), {whole} (experts of 2 layers in main memory)",
        f"{whole} (blk.1.ffn_up_exps, attn_q as asked), {whole} (attn as asked)",
    ]
