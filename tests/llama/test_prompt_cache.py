"""A prompt's state on disk: from it comes the same text, and nothing of a file that is not of this model and these tokens."""

import json
import os

import pytest
from helpers import amx, tiny
from helpers.answers import GREEDY, ask

from pyspec.engine.kept import _NO_MATTER, PromptCache, settings_of
from pyspec.errors import OptionError

PROMPT = [tiny.A + n % 20 for n in range(60)]


@pytest.fixture
def kept(open_llama, tiny_target, tmp_path):
    """A cache of PROMPT, and the answer to it."""
    llm = open_llama(tiny_target)
    cache = PromptCache(llm, tmp_path / "prompt.bin")
    assert cache.restore(PROMPT) == 0
    ids = []
    for step in llm.steps(PROMPT, GREEDY, max_tokens=12):
        if not ids:
            cache.keep(PROMPT)
        ids += [token.id for token in step.tokens]
    return tmp_path / "prompt.bin", ids


@pytest.mark.parametrize("draft", ["none", "model", "eagle3"])
def test_the_prompt_is_not_read_again(
    open_llama, tiny_target, tiny_draft, tiny_eagle3, kept, draft
):
    path, wanted = kept
    named = {"none": "none", "model": tiny_draft, "eagle3": tiny_eagle3}[draft]
    llm = open_llama(tiny_target, draft=named)
    assert PromptCache(llm, path).restore(PROMPT) == len(PROMPT)
    assert ask(llm, PROMPT, 12).ids == wanted
    assert llm.last_speculation["prompt_kept"] == len(PROMPT) - 1


def test_a_longer_prompt_goes_on_from_it(open_llama, tiny_target, kept):
    path, _ = kept
    longer = [*PROMPT, tiny.A, tiny.A + 1, tiny.A + 2]
    llm, before = open_llama(tiny_target), path.stat().st_size
    cache = PromptCache(llm, path)
    assert cache.restore(longer) == len(PROMPT)
    assert ask(llm, longer, 1).ids == ask(open_llama(tiny_target), longer, 1).ids
    cache.keep(longer)
    assert path.stat().st_size > before


@pytest.mark.parametrize("fault", ["weights", "type", "state", "tokens", "cut", "other prompt"])
def test_what_does_not_belong_is_not_used(open_llama, tiny_target, tiny_draft, kept, fault, caplog):
    path, _ = kept
    data = bytearray(path.read_bytes())
    if fault == "state":
        data[-5] ^= 1
    elif fault == "tokens":
        line = bytes(data).split(b"\n", 2)[1]
        head = json.loads(line)
        head["tokens"][0] = 10**6
        data = bytearray(bytes(data).replace(line, json.dumps(head).encode()))
    elif fault == "cut":
        del data[-100:]
    path.write_bytes(data)
    options = {"type_k": 0} if fault == "type" else {}
    llm = open_llama(tiny_draft if fault == "weights" else tiny_target, **options)
    prompt = [tiny.A + 9, *PROMPT[1:]] if fault == "other prompt" else PROMPT
    assert PromptCache(llm, path).restore(prompt) == 0
    assert "prompt.bin" in caplog.text
    ask(llm, prompt, 3)
    assert llm.last_speculation["prompt_kept"] == 0


def test_other_files_are_left_alone(open_llama, tiny_target, tmp_path):
    """A slip of the file name does not cost the user's notes, and a pipe is not waited for."""
    (tmp_path / "notes.txt").write_text("dear diary")
    os.mkfifo(tmp_path / "pipe")
    llm = open_llama(tiny_target)
    for name, said in (("notes.txt", "not a prompt cache"), ("pipe", "not a regular file")):
        with pytest.raises(OptionError, match=said):
            PromptCache(llm, tmp_path / name).restore(PROMPT)
    assert (tmp_path / "notes.txt").read_text() == "dear diary"


def test_a_file_that_cannot_be_written_is_named(open_llama, tiny_target, tmp_path, caplog):
    llm = open_llama(tiny_target)
    PromptCache(llm, tmp_path / "nowhere" / "prompt.bin").keep(PROMPT)
    PromptCache(llm, None).keep(PROMPT)  # none is wanted
    assert PromptCache(llm, None).restore(PROMPT) == 0
    (said,) = caplog.messages
    assert said == "the prompt cache prompt.bin is not written: No such file or directory"


CHANGED = {
    "rope_freq_base": 20000.0, "flash_attn": False, "extra_buffers": "off",
    "kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 1e-3},
}  # fmt: skip
"""Settings that states depend on, one of each kind, at another value."""


@pytest.mark.parametrize("name", CHANGED)
def test_a_cache_of_another_setting_is_not_used(name, open_llama, tiny_target, kept):
    off_already = name == "extra_buffers" and amx.READ
    llm = open_llama(tiny_target, **{name: "on" if off_already else CHANGED[name]})
    assert PromptCache(llm, kept[0]).restore(PROMPT) == 0


@pytest.mark.parametrize(
    "changed", [{"n_threads": 2}, {"no_perf": False}, {"use_mmap": False}, {"seed": 5}]
)
def test_a_cache_outlives_other_changes(changed, open_llama, tiny_target, kept):
    llm = open_llama(tiny_target, **changed)
    assert PromptCache(llm, kept[0]).restore(PROMPT) == len(PROMPT)


def test_an_adapter_and_its_scale_belong_to_a_cache(open_llama, tiny_target, tmp_path):
    llm = open_llama(tiny_target)
    made = []
    for path, scale in (("a", 1.0), ("b", 1.0), ("b", 0.5)):
        (tmp_path / path).write_text(path)
        llm.lora_path, llm.lora_scale = str(tmp_path / path), scale
        made.append(settings_of(llm))
    llm.lora_path = None
    assert len({repr(each) for each in (*made, settings_of(llm))}) == 4


def test_a_parameter_that_llama_cpp_adds_counts(open_llama, tiny_target):
    llm = open_llama(tiny_target)
    found = {name.partition(".")[2] for name in settings_of(llm) if "." in name}
    known = {name for params in (llm.context_params, llm.model_params) for name, *_ in params._fields_}  # fmt: skip
    assert found | _NO_MATTER == known
