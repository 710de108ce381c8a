"""Where single tensors lie: what is understood, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from pyspec.batch import Batch
from pyspec.draft.costs import CostCurve, Experts
from pyspec.engine.profiles import prior_curve
from pyspec.engine.tensor_places import TensorPlaces, experts_of, tensor_places
from pyspec.errors import OptionError
from pyspec.gguf.header import read_header
from pyspec.llama.speculative import SpeculativeLlama


@pytest.fixture(scope="module")
def mixture(tiny_folder: Path) -> Path:
    return tiny.write(tiny_folder / "four-experts.gguf", arch="mixture")


@pytest.mark.parametrize("given", ["a.*b=CPU,c=cpu", {"a.*b": "CPU", "c": "cpu"}])
def test_words_and_mappings_say_the_same(given: Any) -> None:
    """Devices are known whatever the size of their letters."""
    assert tensor_places(0, given) == TensorPlaces((("a.*b", "CPU"), ("c", "CPU")))


def test_the_users_own_patterns_come_before_the_experts() -> None:
    """The first match counts, as in llama.cpp."""
    places = TensorPlaces(((r"blk\.0\.ffn_up", "CUDA0"),), 1)
    named = ("blk.0.ffn_up_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight")
    assert [places.place_of(name) for name in named] == ["CUDA0", "CPU", None]


def test_shared_experts_are_no_experts() -> None:
    assert TensorPlaces(experts=-1).place_of("blk.0.ffn_up_shexp.weight") is None


@pytest.mark.parametrize(
    ("experts", "given", "says"),
    [
        (0, "exps", "cannot read the override 'exps'"),
        (0, "=CPU", "cannot read the override '=CPU'"),
        (0, "(=CPU", "the pattern .* cannot be read"),
        (0, "exps=Pluto", "there is no device 'Pluto' for exps"),
        (0, {"x" * 300: "CPU"}, "cannot be used"),
        (-2, None, "n_cpu_moe is -2"),
        (True, None, "n_cpu_moe is True"),
    ],
)
def test_what_cannot_be_is_refused(experts: int, given: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tensor_places(experts, given)


def test_a_model_without_experts_has_none_to_keep(tiny_target: Path, tiny_draft: Path) -> None:
    """Neither as target nor as draft, at each interface."""
    for make in (SpeculativeLlama, Batch):
        with pytest.raises(OptionError, match=r"target\.gguf is no mixture"):
            make(str(tiny_target), n_cpu_moe=1, draft="none", n_ctx=64)
    with pytest.raises(OptionError, match=r"draft\.gguf is no mixture"):
        SpeculativeLlama(tiny_target, draft=str(tiny_draft), draft_n_cpu_moe=-1, n_ctx=64)


def test_overrides_reach_llama_cpp(mixture: Path, open_llama: Callable[..., Any]) -> None:
    """Without a device all lies in main memory, and texts stay."""

    def text(**how: Any) -> Any:
        llm = open_llama(mixture, trust=True, **how)
        assert bool(llm.model_params.tensor_buft_overrides) == bool(how)
        return llm.create_completion("abc", max_tokens=16, temperature=0)["choices"][0]["text"]

    assert text(n_cpu_moe=-1) == text(override_tensor="ffn_.*=CPU") == text()


def test_a_row_reads_the_experts_it_uses(mixture: Path, tiny_target: Path, open_plain: Any) -> None:
    """Two of four, and everything else but the embeddings of other tokens; a model without any has none."""
    sizes = {tensor.name: tensor.nbytes for tensor in read_header(mixture).tensors}
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    rest = sum(sizes.values()) - experts - sizes["token_embd.weight"]
    own = experts // 2
    assert experts_of(open_plain(mixture)) == (Experts(4, 2, own / (own + rest)), own + rest)
    assert experts_of(open_plain(tiny_target)) is None


def test_the_first_costs_are_those_of_a_mixture(tiny_folder: Path, open_llama: Any) -> None:
    """More rows than one read more experts."""
    path = tiny.write(tiny_folder / "experts.gguf", arch="mixture", n_experts=16)
    llm = open_llama(path)
    dense = CostCurve.prior("", 10.0).target.table()
    first = prior_curve(llm, []).target.table()
    assert first[3] / first[1] > 1.2 * dense[3] / dense[1]
