"""A tiny random file of each architecture that llama.cpp knows: what its header has to say, and tensors as llama.cpp asks for.

Which tensors there are, and their shapes, llama.cpp itself says: it is given the header and makes the model, in a process of
its own, since it ends that for headers that do not suit it. Next-token heads (MTP) are layers more.
"""

import ctypes
import json
import os
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.forked import fork
from helpers.make_gguf import ARR, BOOL, F32, I32, STR, U32, U64, Gguf, Tensor, tiny_llama
from pyspec.gguf.kinds import _PURPOSE, PURPOSES

_NAMES = """
llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert nomic-bert nomic-bert-moe
neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl
qwen3vlmoe qwen35 qwen35moe qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion internlm2 minicpm minicpm3 gemma
gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r
cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4
chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe
rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm
bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense
hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss grovemoe apertus minimax-01
hrm_text minimax-m2 minimax-m3 cogvlm rnd1 pangu-embedded mistral3 eagle3 dflash mistral4 paddleocr mimo2 step35 spark2_5
llama-embed maincoder kimi-linear kimi-k3 glm5-next talkie mellum nanbeige qwen3tts pockettts clip
"""

NAMES = _NAMES.split()
"""All that the pinned llama.cpp has a name for."""

REFUSED = {*_PURPOSE, *PURPOSES, "gptj", "clip", "rwkv6qwen2", "chameleon"}
"""Those that are no decoders, or that llama.cpp has only the name of. Of rwkv6qwen2 the graph ends it for any header tried here,
chameleon's where no row of a decode has logits.
"""

_MLA = "deepseek2 deepseek32 glm-dsa dots3note kimi-linear bailingmoe3 kimi-k3 glm5-next mistral4 hy_v4"
_STATES = "plamo2 jamba nemotron_h nemotron_h_moe granitehybrid lfm2 lfm2moe kimi-linear bailingmoe3 kimi-k3"
_SWA = "cohere2moe mimo2 step35 spark2_5 muse-glimmer granite_swa dots3note maple"
_LATENT, _MIXED, _PATTERN = ({*names.split()} for names in (_MLA, _STATES, _SWA))
_DELTA = {"qwen3next", "qwen35", "qwen35moe", "qwen4exp"}
_LAYERS = {"llama4": 4, "gemma4": 5, "gemma3n": 22, "deepseek4": 4, "hrm_text": 6}
_LAYERS |= {"nemotron_h": 3, "nemotron_h_moe": 3}
_TOKENS = {"chameleon": 10240, "qwen3tts": 3072}
_CONTEXT = 256

Facts = dict[str, tuple[int, Any]]
"""Kinds and values by their keys."""


def _sizes(arch: str) -> tuple[int, int, int]:
    """Width, heads, and width inside the feed-forward part."""
    known = {"gemma4": (128, 2, 192), "gemma3n": (64, 1, 96), "deepseek4": (512, 8, 1024)}
    known |= dict.fromkeys(["step35", "laguna"], (160, 2, 384))
    known |= dict.fromkeys(["qwen3", "muse-glimmer", "afmoe"], (256, 4, 384))
    return (128, 1, 192) if arch in _LATENT else known.get(arch, (256, 2, 384))


def header(arch: str, *, experts: bool, n_heads: int = 0) -> Gguf:
    """Everything that some architecture wants to know, as this one wants it; no tensors."""
    width, heads, inner = _sizes(arch)
    layers, head = _LAYERS.get(arch, 2), width // heads
    numbers = {
        "context_length": _CONTEXT, "embedding_length": width, "features_length": width, "block_count": layers,
        "leading_dense_block_count": 1, "feed_forward_length": inner, "time_mix_extra_dim": 64, "time_decay_extra_dim": 128,
        "full_attention_interval": 2, "attention.group_norm_groups": 8, "attention.relative_buckets_count": 8,
        "attention.q_lora_rank": 64 if arch == "deepseek4" else 512, "attention.kv_lora_rank": 512,
        "attention.sliding_window": _CONTEXT // 8, "attention.sliding_window_pattern": 2,
        "attention.indexer.head_count": heads if arch == "minimax-m3" else 64,
        "attention.indexer.key_length": head if arch == "qwen4exp" else 128,
        "attention.indexer.top_k": 1 << 17, "attention.indexer.block_size": 4, "attention.indexer.kpool": 4,
        "attention.indexer.local_blocks": 1, "posnet.embedding_length": width, "posnet.block_count": layers,
        "convnext.embedding_length": width, "convnext.block_count": layers,
        "ssm.inner_size": 256 if arch in _DELTA else 2 * width, "ssm.conv_kernel": 4, "ssm.state_size": 128,
        "ssm.time_step_rank": heads, "ssm.group_count": 0 if arch == "plamo2" else 2, "kda.head_dim": 128,
        "wkv.head_size": head, "shortconv.l_cache": 3, "attn_res.block_size": 12, "attention.head_count": heads,
        "attention.head_count_kv": {"qwen3": 1, "muse-glimmer": 2, "afmoe": 2, "deepseek4": 1}.get(arch, heads),
    }  # fmt: skip
    fractions = {
        "logit_scale": 1.0, "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.0, "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 1e-5, "residual_scale": 1.0,
        "kda.gate_lower_bound": -5.0, "activation.situ_beta": 4.0, "activation.situ_linear_beta": 25.0,
        "embedding_scale": 1.0, "attention.scale": head**-0.5,
    }  # fmt: skip
    facts = _whole(numbers) | _real(fractions)
    facts |= {"use_parallel_residual": (BOOL, False), "kda.safe_gate": (BOOL, True)}
    facts["attention.indexer.kpool_select_tail"] = (BOOL, True)
    facts["rope.dimension_sections"] = _each(U32, [head // 4] * 4)
    for key in ("alpha_n", "alpha_p", "beta", "eps"):
        facts[f"xielu.{key}"] = (F32, 1e-7 if key == "eps" else 1.0)
    facts |= _of(arch, width, heads, layers, inner)
    facts |= _experts(arch, inner) if experts else {}
    made = Gguf({"general.architecture": (STR, arch)})
    made.kv |= {f"{arch}.{key}": value for key, value in facts.items()}
    made.kv |= {key: value for key, value in facts.items() if key.startswith("xielu.")}
    if n_heads:
        _add_heads(made, arch, n_heads)
    return _with_words(made, _TOKENS.get(arch, 0))


def _whole(numbers: dict[str, int]) -> Facts:
    return {key: (U32, n) for key, n in numbers.items()}


def _real(numbers: dict[str, float]) -> Facts:
    return {key: (F32, x) for key, x in numbers.items()}


def _each(kind: int, values: Iterable[Any]) -> tuple[int, Any]:
    return ARR, (kind, list(values))


def _of(arch: str, width: int, heads: int, layers: int, inner: int) -> Facts:
    """Where this architecture wants something else, or more."""
    head, number = width // heads, range(layers)
    mixed = _each(U32, (0 if i == 1 else heads for i in number))
    rope = 0 if arch == "glm5-next" else 64
    latent = {
        "attention.key_length": 512 + rope, "attention.value_length": 512, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "rope.dimension_count": rope,
    }  # fmt: skip
    ranks = (f"attention.{x}_lora_rank" for x in ("decay", "iclr", "value_residual_mix", "gate"))
    switches = (f"adapters.token_ids_{what}" for what in ("activate", "substitute"))
    short = {"embedding_length_per_layer_input": width // 2, "attention.shared_kv_layers": 0}
    wanted: list[tuple[set[str], Facts]] = [
        (_MIXED, {"attention.head_count": mixed, "attention.head_count_kv": mixed}),
        ({"glm5-next"}, {"attention.head_count_kv": mixed}),
        (_LATENT, _whole(latent)),
        ({"deepseek4"}, _whole({"rope.dimension_count": head // 2})),
        ({"deepseek4"}, _whole({f"attention.{x}_length": head for x in ("key", "value")})),
        ({"minimax-m3"}, _whole({"rope.dimension_count": 64})),
        # which layers look back a little way only
        (_PATTERN, {"attention.sliding_window_pattern": _each(U32, (i % 2 for i in number))}),
        ({"gemma4"}, {"attention.sliding_window_pattern": _each(BOOL, (i < 4 for i in number))}),
        ({"gemma4"}, _whole({f"attention.{x}_length_swa": head for x in ("key", "value")} | short)),
        ({"gemma4", "dots3note"}, _real({"rope.freq_base_swa": 1e4})),
        ({"bailingmoe3"}, {"rope.dimension_sections": _each(U32, [8, 12, 12, 0])}),
        ({"bailingmoe3"}, {"swiglu_clamp_exp": _each(F32, [0.0, 4.0])}),
        ({"bailingmoe3"}, {"swiglu_clamp_shexp": _each(F32, [0.0, 5.0])}),
        ({"maple"}, _real({"swiglu_clamp_exp": 7.0})),
        ({"nemotron_h", "nemotron_h_moe"}, {"feed_forward_length": _each(U32, [0, 0, inner])}),
        ({"rwkv7", "arwkv7"}, _whole(dict.fromkeys(ranks, 32))),
        ({"arwkv7"}, _whole({"token_shift_count": 1})),
        ({"graniteswitch"}, _whole({"adapters.count": 2, "adapters.lora_rank": 4})),
        ({"graniteswitch"}, dict.fromkeys(switches, _each(U32, [40, 41]))),
        *_newest(width, layers),
    ]
    return {key: fact for archs, facts in wanted if arch in archs for key, fact in facts.items()}


def _newest(width: int, layers: int) -> list[tuple[set[str], Facts]]:
    """What came with models whose layers have several streams, or loops."""
    streams = {"hyper_connection.count": 4, "hyper_connection.sinkhorn_iterations": 2}
    grams = {"ngram_size": 3, "heads_per_ngram": 2, "conv_kernel": 4, "eos_token_id": 0}
    lists = {"layer_multipliers": [1, 3, 5], "head_vocab_sizes": [263] * 4}
    lists["head_offsets"] = [263 * i for i in range(4)]
    outer = {"attention.output_group_count": 8, "attention.output_lora_rank": 32, "hash_layer_count": 0}  # fmt: skip
    latent = {"kv_lora_rank": 512, "key_length": 576, "value_length": 512}
    latent |= {"key_length_mla": 192, "value_length_mla": 128}
    loops = {"layers_per_stack": 1, "h_cycles": 2, "l_cycles": 2}
    grammed, streamed = {"qwen4exp", "glm5-next"}, {"qwen4exp", "glm5-next", "hy_v4", "deepseek4"}
    owners = _each(U32, (1 - i % 2 for i in range(layers)))
    return [
        (streamed, _whole(streams) | _real({"hyper_connection.epsilon": 1e-6})),
        (grammed, _whole({"hyper_connection.low_rank": 8})),
        (grammed, _whole({f"ple.{key}": n for key, n in grams.items()})),
        (grammed, {f"ple.{key}": _each(U64, values) for key, values in lists.items()}),
        (grammed, {"ple.layers": _each(U32, [0])}),
        (grammed, {"attention.compress_ratios": _each(U32, [4] * layers)}),
        (grammed, _whole({"embedding_length_per_layer_input": width // 4})),
        ({"hy_v4"}, _real({"hyper_connection.magnitude": 2.0})),
        ({"hy_v4", "deepseek4"}, _real({"swiglu_clamp_exp": 10.0, "expert_weights_scale": 1.0})),
        ({"hy_v4", "deepseek4"}, {"expert_weights_norm": (BOOL, True)}),
        ({"hy_v4", "dots3note"}, {"attention.indexer.types": owners}),
        ({"deepseek4"}, _whole(outer)),
        ({"deepseek4"}, {"attention.compress_ratios": _each(U32, [0, 0, 4, 128])}),
        ({"deepseek4"}, _real({"attention.compress_rope_freq_base": 160000.0})),
        ({"dots3note"}, _whole({f"attention.{key}_swa": n for key, n in latent.items()})),
        ({"hrm_text"}, _whole({f"hrm.{key}": n for key, n in loops.items()})),
    ]


def _experts(arch: str, inner: int) -> Facts:
    numbers = {
        "expert_feed_forward_length": inner, "expert_shared_feed_forward_length": inner // 2, "expert_latent_length": inner,
        "expert_chunk_feed_forward_length": inner, "moe_every_n_layers": 2, "moe_latent_size": inner,
        "interleave_moe_layer_step": 2, "expert_count": 2, "expert_used_count": 2, "expert_shared_count": 1,
        "expert_gating_func": 4 if arch == "deepseek4" else 2, "experts_per_group": 1,
    }  # fmt: skip
    return _whole(numbers) | _real({"expert_group_scale": 1.0})


def _with_words(made: Gguf, at_least: int) -> Gguf:
    words = tiny_llama().kv
    _, (_, texts) = words["tokenizer.ggml.tokens"]
    more = max(0, at_least - len(texts))
    for key, of, extra in (
        ("tokens", STR, [f"<t{i}>" for i in range(more)]),
        ("scores", F32, [0.0] * more),
        ("token_type", I32, [4] * more),
    ):
        _, (_, values) = words[f"tokenizer.ggml.{key}"]
        made.kv[f"tokenizer.ggml.{key}"] = (ARR, (of, [*values, *extra]))
    for key in ("model", "bos_token_id", "eos_token_id"):
        made.kv[f"tokenizer.ggml.{key}"] = words[f"tokenizer.ggml.{key}"]
    made.kv["tokenizer.ggml.token_type_count"] = (U32, 2)
    made.kv["tokenizer.ggml.add_bos_token"] = (BOOL, False)
    return made


_LIKE_THE_FIRST = {"bailingmoe3"}
"""Whose heads have attention where the last of the other layers has none."""
_FLAT = {"glm4moe"}
"""Whose heads turn positions in one dimension alone, as models of texts do."""


def _add_heads(made: Gguf, arch: str, n_heads: int) -> None:
    """Lists with an entry a layer get as many more."""
    kind, layers = made.kv[f"{arch}.block_count"]
    for key, (of, value) in list(made.kv.items()):
        if key.startswith(arch) and isinstance(value, tuple) and len(value[1]) == layers:
            like = value[1][0 if arch in _LIKE_THE_FIRST else -1]
            made.kv[key] = of, (value[0], [*value[1], *[like] * n_heads])
    made.kv[f"{arch}.block_count"] = kind, layers + n_heads
    made.kv[f"{arch}.nextn_predict_layers"] = U32, n_heads
    if arch in _FLAT:
        del made.kv[f"{arch}.rope.dimension_sections"]


class _Init(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


_NE = 16
"""Where in a ggml_tensor its four sizes are: behind its type and its buffer."""


def _tensors(path: Path, heads: bool, report: int) -> None:
    """Writes names and shapes of the tensors that llama.cpp makes for a header."""
    import llama_cpp

    from pyspec.machine.child import ggml_function

    lc = llama_cpp.llama_cpp
    found: list[tuple[str, list[int]]] = []
    name_of = ggml_function(lc, "ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
    read = ggml_function(lc, "gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Init)

    def hear(tensor: Any, _data: Any) -> None:
        at = tensor if isinstance(tensor, int) else ctypes.cast(tensor, ctypes.c_void_p).value
        sizes = (ctypes.c_int64 * 4).from_address(at + _NE)
        found.append((name_of(at).decode(), list(sizes)))

    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    if heads:
        params.load_mtp = True
    callback = lc.llama_model_set_tensor_data_t(hear)
    model = lc.llama_model_init_from_user(
        read(os.fsencode(path), _Init(True, None)), callback, None, params
    )
    os.write(report, json.dumps(found if model else []).encode())
    os._exit(0)


def write(path: Path, arch: str, n_heads: int = 0) -> bool:
    """Write a random file; whether it is whole: of what some headers say llama.cpp makes no model, then it has one tensor."""
    for experts in (False, True):
        made = header(arch, experts=experts, n_heads=n_heads)
        made.write(path)
        said, _, _ = fork(partial(_tensors, path, n_heads > 0), 30)
        if said.startswith("[["):
            found = json.loads(said)
            named = dict(reversed(_needed(found) if n_heads else found))  # some stand twice
            made.tensors += [_random(name, sizes) for name, sizes in named.items()]
            made.write(path)
            return True
    made.tensors.append(_random("token_embd.weight", [_sizes(arch)[0], 263, 1, 1]))
    made.write(path)
    return False


def _random(name: str, sizes: list[int]) -> Tensor:
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(int(np.prod(sizes)), np.float32)
    values = 1 + 0.1 * values if "norm" in name and name.endswith("weight") else 0.2 * values
    if "ssm_a" in name:
        values = -abs(values)
    return Tensor(name, tuple(sizes), values.astype(np.float32).tobytes())


def _needed(said: list[Any]) -> list[Any]:
    """Without the scales of a head that it leaves out, which llama.cpp counts as missing; mimo2's heads with fused attention."""
    found = [tensor for tensor in said if not tensor[0].endswith("scale")]
    heads = {
        name.split(".nextn.")[0] for name, _ in found if name.endswith(".nextn.eh_proj.weight")
    }
    if not any(name == f"{head}.attn_sinks.weight" for name, _ in found for head in heads):
        return found
    parts = {
        f"{head}.attn_{what}.{kind}"
        for head in heads
        for what in "qkv"
        for kind in ("weight", "bias")
    }
    sizes = dict(found)
    kept = [tensor for tensor in found if tensor[0] not in parts]
    for head in heads:
        rows = sum(sizes[f"{head}.attn_{what}.weight"][1] for what in "qkv")
        kept.append([f"{head}.attn_qkv.weight", [sizes[f"{head}.attn_q.weight"][0], rows, 1, 1]])
    return kept
