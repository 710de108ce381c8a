"""No value of an option of the class ends the process: a child tries all on tiny models, and says what it tries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny_positions
from helpers.make_gguf import tiny_llama

import pyspec

WHOLE = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 30, 33, 40, 255, 256, 257, 300, 1000, 1500)
REAL = (-1e30, -1.0, 0.0, 1e-30, 0.5, 1.0, 1e30, float("inf"), float("nan"))
FLAG = (True, False, 2, -1)

VALUES = {
    **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch", "pooling_type", "rope_scaling_type"), WHOLE),
    **dict.fromkeys(("attention_type", "type_k", "type_v", "split_mode", "main_gpu"), WHOLE),
    **dict.fromkeys(("n_threads", "yarn_orig_ctx", "last_n_tokens_size", "n_gpu_layers"), WHOLE),
    **dict.fromkeys(("rope_freq_base", "rope_freq_scale", "yarn_ext_factor"), REAL),
    **dict.fromkeys(("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"), REAL),
    **dict.fromkeys(("flash_attn", "swa_full", "offload_kqv", "op_offload", "logits_all"), FLAG),
}
EVERY_DAY = {"n_batch": (1, 255, 300, 1000), "pooling_type": (-2, 2, 4, 5, 300)}
"""Those on which llama.cpp aborts, with their neighbours."""

PROGRAM = """
import json, sys
from pyspec import SpeculativeLlama
for path, options in json.load(sys.stdin):
    print(options, flush=True)
    fixed = {"trust": True, "draft": "none", "n_threads": 1, "flash_attn": False}
    try:
        with SpeculativeLlama(path, **{**fixed, **options}) as llm:
            if options.get("embedding"):
                llm.create_embedding(["a" * 300, "b" * 300, "c"])
            else:
                llm.create_completion("a" * 40, max_tokens=4, temperature=0)
    except Exception:
        pass
"""


def end_of(folder, values):
    """The child's status, what it tried last, and its last words."""
    made = {"llama": tiny_llama(), "gpt2": tiny_positions.gpt2(300)}
    made |= {"short": tiny_positions.bert(300), "long": tiny_positions.bert(4096)}
    paths = {name: model.write(folder / f"{name}.gguf") for name, model in made.items()}
    ways = [("llama", {}), ("gpt2", {})]
    ways += [(name, {"embedding": True, "n_ctx": 0}) for name in ("llama", "short", "long")]
    tried = [
        (str(paths[model]), {**way, name: value})
        for name, each in values.items()
        for value in each
        for model, way in ways
    ]
    sources = {**os.environ, "PYTHONPATH": str(Path(pyspec.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, env=sources, input=json.dumps(tried), capture_output=True, text=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == len(tried) or done.returncode
    return done.returncode, "\n".join([*done.stdout.splitlines()[-1:], done.stderr[-300:]])


def test_none_ends_the_process(tmp_path):
    status, last = end_of(tmp_path, EVERY_DAY)
    assert status == 0, last


@pytest.mark.slow
def test_no_value_of_any_ends_the_process(tmp_path):
    status, last = end_of(tmp_path, VALUES)
    assert status == 0, last
