"""Which models can draft for which, among files made for the test."""

from pathlib import Path

import msgspec
import pytest
from helpers import tiny, tiny_eagle
from helpers.programs import named, pulled, put, snapshot

from pyspec.gguf.header import Facts, facts_of
from pyspec.gguf.vocabulary import VocabularyHash
from pyspec.hub.drafts import LARGEST, candidates, drafts_here, is_of, known_drafts
from pyspec.hub.sources import Family, FamilyDraft, load_manifest

pytestmark = pytest.mark.usefixtures("home")


def made(path, **options):
    return named(tiny.write(path, **options))


def names_of(target):
    return [found.name for found in drafts_here(target)]


def test_models_with_the_vocabulary_smallest_first(home):
    target = made(home / "target.gguf", n_layer=8)
    made(home / "half.gguf", n_layer=4)
    small = made(home / "small.gguf", n_layer=1)
    made(home / "large.gguf", n_layer=9)
    made(home / "other.gguf", tokens=[*tiny.TOKENS[:-1], "#"])
    made(home / "ends.gguf", n_layer=2, eos=7)
    made(home / "padded.gguf", n_layer=3, tokens=[*tiny.TOKENS, *(f"[PAD{i}]" for i in range(9))])
    found = candidates(target)
    assert [c.name for c in found] == ["small", "ends", "padded", "half"]
    assert found[0].path == small
    assert found[0].share == pytest.approx(small.stat().st_size / target.stat().st_size)
    unasked = [c.name for c in found if c.share <= LARGEST]
    assert "half" not in unasked
    assert names_of(target) == unasked


def test_a_mixture_gets_no_draft_larger_than_what_a_token_reads(home):
    """Two of its 64 experts; a dense model of that size would have both drafts."""
    target = made(home / "mixture.gguf", arch="mixture", n_experts=64, n_layer=8)
    facts = facts_of(target)
    large, small = made(home / "large.gguf", n_layer=6), made(home / "small.gguf", n_layer=1)
    sizes = [path.stat().st_size for path in (small, large)]
    assert sizes[0] < 0.35 * facts.read < sizes[1] < 0.35 * facts.size
    assert names_of(target) == ["small"]
    shares = {each.name: each.share for each in candidates(target)}
    assert shares["large"] == pytest.approx(sizes[1] / facts.read)


GEMMA = "dcd50b2ac8a246b98cc3b73dac3427397ad4f65f107edd8a6a61e46cc179862b"
QWEN = {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"}
THINKING = {151665: "<tool_response>", 151667: "<think>", 151668: "</think>"}
LLAMA = {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>"}
BEGIN, END = (f"<\uff5c{which}\u2581of\u2581sentence\uff5c>" for which in ("begin", "end"))
DEEPSEEK = {0: BEGIN, 1: END}
DISTILLED = {151643: END, 151644: "<\uff5cUser\uff5c>", 151646: BEGIN}


def large(architecture, n_vocab, marks, before="", name=""):
    words = VocabularyHash("BPE", n_vocab, -1, -1, 0, before, "", "", tuple(marks.items()))
    return Facts(architecture, "Q4_K_M", name, n_vocab, words, 4_700_000_000)


@pytest.mark.parametrize(("facts", "wanted"), [
    (large("qwen2", 152064, QWEN), "Qwen2.5-0.5B"),
    (large("qwen3", 151936, QWEN | THINKING), "Qwen3-0.6B"),
    (large("qwen35", 248320, {}), "Qwen3.5-0.8B"),
    (large("llama", 128256, LLAMA | {128010: "<|python_tag|>"}), "Llama-3.2-1B"),
    (large("gemma3", 262208, {}, GEMMA), "gemma-3-270m"),
    (large("llama", 131072, {3: "[INST]", 17: "[SYSTEM_PROMPT]"}), "Mistral-Small"),
    (large("deepseek2", 129280, DEEPSEEK), "DeepSeek-R1-DRAFT"),
    (large("qwen2", 152064, DISTILLED), "DeepSeek-R1-Distill-Qwen-1.5B"),
    (large("glm4moe", 151552, {}), "GLM-4.5-DRAFT"),
])  # fmt: skip
def test_families_are_known(facts, wanted):
    """A 7B model of each family has a draft to fetch, the smallest first, those of unknown size last."""
    found = known_drafts(facts, load_manifest())
    assert any(wanted in candidate.name for candidate in found)
    sizes = [candidate.size or facts.size for candidate in found]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("facts", [
    pytest.param(large("llama", 32000, {}), id="an older llama"),
    pytest.param(large("llama", 128256, LLAMA | {128010: "<|reserved_special_token_5|>"}), id="Llama 3.0"),
    pytest.param(large("llama", 128256, {128000: "<begin of sentence>"}), id="R1 distilled to Llama"),
    pytest.param(large("qwen2", 152064, {151643: "<end of sentence>"}), id="other words in Qwen 2.5's place"),
    pytest.param(large("deepseek2", 163840, {}, name="Kimi K2.7 Code"), id="a Kimi whose tokens are others"),
    pytest.param(large("glm4", 151552, {}), id="GLM-4 has fewer tokens than GLM-4.5"),
    pytest.param(large("qwen2", 152064, QWEN | THINKING), id="QwQ"),
    pytest.param(large("llama", 131072, {3: "[INST]", 17: "<SPECIAL_17>"}), id="Mistral Nemo"),
    pytest.param(large("gemma3", 262208, {}, "another"), id="other words of that size"),
    pytest.param(large("deepseek2", 102400, DEEPSEEK), id="DeepSeek V2"),
    pytest.param(large("gpt-oss", 201088, {}), id="a head is made for one size, which no name tells"),
    pytest.param(large("gemma4", 262144, {}, name="Gemma 4 7B"), id="a size without a head"),
])  # fmt: skip
def test_another_family_has_none_of_theirs(facts):
    """Architecture and size are not enough: llama.cpp's test would refuse the pair once it is here."""
    assert known_drafts(facts, load_manifest()) == []


@pytest.mark.parametrize(("facts", "wanted"), [
    (large("deepseek2", 163840, {}, name="Kimi K2 Instruct 0905"), ["Kimi-K2-Instruct-DRAFT"]),
    (large("deepseek2", 129280, DEEPSEEK, name="DeepSeek V3 0324"), ["DeepSeek-V3-DRAFT"]),
    (large("deepseek2", 129280, DEEPSEEK, name="DeepSeek R1 0528"), ["DeepSeek-R1-DRAFT-0.6B"]),
    (large("qwen3moe", 151936, QWEN | THINKING, name="Qwen3 Coder 30B A3B"), ["Qwen3-Coder"]),
    (large("gpt-oss", 262144, {}, name="gpt-oss-20b"), ["eagle3-gpt-oss-20b", None]),
    (large("gemma4", 262144, {}, name="Gemma 4 26B A4B It"), ["mtp-gemma-4-26B-A4B", "dflash-gemma-4-26B-A4B", None]),
    (large("gemma4", 262144, {}, name="gemma-4-E4B-it"), ["mtp-gemma-4-E4B", None]),
])  # fmt: skip
def test_what_was_made_for_a_model_goes_first(facts, wanted):
    """None: nothing else is known, since heads are for one size."""
    found = [each.name for each in known_drafts(facts, load_manifest())]
    for name, text in zip([*found, None], wanted, strict=False):
        assert text in name if text else name is None


def test_a_fetched_head_is_taken(home):
    """Wherever it lies: it was made for this model, whatever its vocabulary says."""
    target = made(home / "target.gguf", n_layer=40)
    facts = facts_of(target)
    named(tiny_eagle.write(home / "elsewhere.gguf"))
    draft = FamilyDraft("elsewhere", 0, "MIT")
    family = Family("Tiny", ("llama",), (), (draft,), {}, (facts.vocabulary.upto,))
    manifest = msgspec.structs.replace(load_manifest(), family=(family,))
    assert names_of(target) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspec.hub.drafts.load_manifest", lambda: manifest)
        assert names_of(target) == ["elsewhere"]


def test_what_is_known_of_a_draft():
    """A file that runs as it is, its licence, and the page or thread that names it."""
    drafts = [draft for family in load_manifest().family for draft in family.drafts]
    assert all("gguf" in draft.model.lower() and draft.licence for draft in drafts)
    assert all(draft.source.startswith("https://") for draft in drafts)


def test_known_targets_are_of_their_family(smollm2, monkeypatch):
    facts = facts_of(Path(smollm2))
    assert [f.name for f in load_manifest().family if is_of(facts, f)] == ["SmolLM2"]


def ollama(home, target, draft):
    pulled(home / ".ollama/models", "toy:8b", model=target)
    return pulled(home / ".ollama/models", "toy:8b-fast", model=target, draft=draft)


def hugging_face(home, target, draft):
    files = {"toy-8b-Q4_K_M": target, "eagle3-toy-Q8_0": draft}
    return snapshot(home / ".cache/huggingface/hub", "maker/toy-8b-GGUF", **files)


def lm_studio(home, target, draft):
    folder = home / ".lmstudio/models/maker/toy-8b-GGUF"
    put(folder / "toy-draft.gguf", draft)
    return put(folder / "toy-8b-Q4_K_M.gguf", target)


def llama_cpp(home, target, draft):
    folder = home / ".cache/llama.cpp"
    put(folder / "manifest=maker=toy-8b-GGUF=Q4_K_M.json", b"{}")
    put(folder / "manifest=other=old-GGUF=Q4_K_M.json", b"{}")
    put(folder / "other_old-GGUF_old-eagle3.gguf", draft + b"\0" * 32)
    put(folder / "maker_toy-8b-GGUF_toy-eagle3.gguf", draft)
    return put(folder / "maker_toy-8b-GGUF_toy-8b-Q4_K_M.gguf", target)


@pytest.mark.parametrize("place", [ollama, hugging_face, lm_studio, llama_cpp])
def test_a_draft_of_the_same_repository(home, place):
    """It is what `auto` tries, once, and nothing of another repository."""
    target = tiny.write(home / "t.gguf", n_layer=40).read_bytes()
    draft = tiny_eagle.write(home / "d.gguf").read_bytes()
    found = list(drafts_here(place(home, target, draft)))
    assert [each.path.read_bytes() == draft for each in found] == [True]


def test_a_draft_beside_its_model_goes_before_smaller_ones(home, monkeypatch):
    target = put(home / "mine/toy.gguf", tiny.write(home / "t.gguf", n_layer=40).read_bytes())
    put(home / "mine/toy-draft.gguf", tiny.write(home / "d.gguf", n_layer=2).read_bytes())
    made(home / "smaller.gguf", n_layer=1)
    made(home / "larger.gguf", n_layer=3)
    monkeypatch.setattr("pyspec.hub.drafts.MAX_TRIED", 3)
    assert [found.name for found in drafts_here(target)] == ["toy-draft", "smaller", "larger"]


def test_a_head_beside_its_model_is_for_its_size(home):
    (home / "mine").mkdir()
    target = tiny.write(home / "mine/toy-8b.gguf", n_layer=40)
    for name in ("eagle3-toy", "eagle3-toy-70b"):
        tiny_eagle.write(home / f"mine/{name}.gguf")
    assert names_of(target) == ["eagle3-toy"]
