"""Which recurrent and hybrid models llama.cpp can go back in: what is known of architectures is what it does."""

import pytest
from helpers import tiny_archs
from helpers.forked import told

from pyspec.engine.models import longest_draft
from pyspec.engine.target import TargetLlama
from pyspec.gguf.kinds import NO_STATES

_KEPT = "lfm2 lfm2moe qwen35 qwen35moe qwen4exp nemotron_h nemotron_h_moe bailingmoe3 kimi-k3 deepseek4 glm5-next"
NAMES = sorted({*_KEPT.split(), *NO_STATES} - tiny_archs.REFUSED - {"deepseek4"})


def goes_back(path):
    llm = TargetLlama(str(path), trust=True, verbose=False, n_ctx=64, n_threads=1)
    return bool(longest_draft(llm))


@pytest.mark.parametrize("arch", [*NAMES, pytest.param("deepseek4", marks=pytest.mark.slow)])
def test_it_is_known_whether_states_are_kept(arch, tmp_path):
    path = tmp_path / f"{arch}.gguf"
    assert tiny_archs.write(path, arch)
    assert told(goes_back, path) is (arch not in NO_STATES)
