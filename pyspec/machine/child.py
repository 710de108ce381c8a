"""Does in a child process what may end or hang a process: trial loads and conversions. Both sides of it are here.

    child.py trial PATH ADDRESS_SPACE_BYTES LOADING_JSON    load a GGUF as the run will, with every check llama.cpp has
    child.py quantize SOURCE OUT FTYPE THREADS              convert a GGUF with llama.cpp's quantiser

The child runs this file by its path, so it imports no pyspec. It ends with one line, a JSON object {"ok", "error"}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

# -- the parent's side -------------------------------------------------------------------------------------------------

_SCRIPT = Path(__file__)

# The child ends when its stdin closes, even if the parent was killed: a thread watches it, which C code does not block.
# It gets the parent's current import path, so that it never imports files of the working directory.
_START = (
    "import os, stat, _thread; stat.S_ISFIFO(os.fstat(0).st_mode) and "
    "_thread.start_new_thread(lambda: (os.read(0, 1), os._exit(1)), ()); "
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "sys.argv[:] = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
_ENV = {
    "GGML_NO_BACKTRACE": "1",  # else an abort starts a debugger
    "PYTHONFAULTHANDLER": "0",
}
_NO_GPU = dict.fromkeys(
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), ""
)  # for work on the CPU, starting a GPU only costs time

KEPT: list[object] = []  # what llama.cpp may use to the end: callbacks, what parameters point to


@dataclass(frozen=True)
class ChildExit:
    """How a child ended: its report's error (empty on success), the signal that killed it, if any, or that it took too long."""

    error: str
    signal: int | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return not self.error and self.signal is None and not self.timed_out

    @property
    def reason(self) -> str:
        if self.timed_out:
            return "it did not finish in time"
        if self.signal == signal.SIGPROF:
            return "llama.cpp did not finish"
        if self.signal is not None:
            names = {int(each): each.name for each in signal.Signals}
            name = names.get(self.signal, f"signal {self.signal}")
            return f"llama.cpp ended the process with {name}"
        return self.error


def run_child(
    task: str,
    arguments: Sequence[str],
    *,
    timeout: float | None = None,
    gpu: bool = False,
    script: Path | None = None,
) -> ChildExit:
    """Run a task of `child.py`, or of another script, whose last line of output is `{"ok": bool, "error": str}`.

    The child is killed after `timeout` seconds and when the caller is interrupted; it sees no GPU unless `gpu`.
    """
    path = json.dumps([p or str(Path.cwd()) for p in sys.path])
    command = [sys.executable, "-c", _START, path, str(script or _SCRIPT), task, *arguments]
    env = {**os.environ, **_ENV, **({} if gpu else _NO_GPU)}
    pipe, (stdin, kept_open) = subprocess.PIPE, os.pipe()
    with subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, env=env) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return ChildExit("", timed_out=True)
        finally:
            os.close(stdin)
            os.close(kept_open)
            child.kill()  # no effect if it has ended
            child.wait()
    return _outcome(child.returncode, output, errors)


def _outcome(status: int, output: bytes, errors: bytes) -> ChildExit:
    if status < 0:
        return ChildExit("", signal=-status)
    with contextlib.suppress(ValueError, RecursionError):
        report = json.loads(_last_line(output))
        if isinstance(report, dict) and status == 0:
            return ChildExit("" if report.get("ok") is True else str(report.get("error", "failed")))
    said = _last_line(errors[-2000:])
    return ChildExit(said or f"the child ended with status {status} and no report")


def _last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2]


# -- the child's side --------------------------------------------------------------------------------------------------


def bindings() -> ModuleType:
    """Import llama_cpp's module of C calls without the package, which takes longer to import than the trial itself."""
    spec = util.find_spec("llama_cpp")
    if spec is None:
        raise ImportError("llama-cpp-python is not installed")
    package = sys.modules["llama_cpp"] = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ())
    return import_module("llama_cpp.llama_cpp")


def errors_of(lc: ModuleType) -> list[str]:
    """Return a list that collects the errors of llama.cpp's log, of which nothing else is kept."""
    errors: list[str] = []

    def log(level: int, text: bytes, _data: object) -> None:
        if level == 4:
            errors.append(text.decode("utf-8", "replace").strip())

    callback = lc.llama_log_callback(log)
    KEPT.append(callback)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    return errors


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def limit(**most: int) -> None:
    """Forbid core files and set limits in bytes by their system names, such as AS for address space."""
    with contextlib.suppress(ValueError, OSError):
        for name, size in {"CORE": 0, **most}.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, hard = resource.getrlimit(kind)
            if hard == resource.RLIM_INFINITY or hard > size:
                resource.setrlimit(kind, (size, size))


# -- trial loads -------------------------------------------------------------------------------------------------------

ROWS = (1, 8, 64)  # of a plain step, a verified draft, a prompt: each uses different kernels
SILENT = 4  # rows of one more decode without logits, like a prompt read in pieces
MAX_CONTEXT = 8192  # largest context to try, tokens; more only takes longer
MAX_SECONDS = 1.0  # time limit for tokenizing a line. It takes microseconds, unless it never ends and uses up gigabytes of memory
TEXT = "Hello, w\u00f6rld\n\0\ufffd \u4e16\u754c".encode()  # not ASCII alone, NUL, replacement


def load_model(lc: ModuleType, path: str, loading: dict[str, Any]) -> Any:
    """Load the model, with llama.cpp's check of the values of the weights; null on failure."""
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    place(lc, params, loading)
    params.use_extra_bufts = loading["extra_buffers"]
    params.check_tensors = True
    params.vocab_only = loading["vocab_only"]
    params.load_mtp = loading["head"]
    if loading["overrides"]:
        params.kv_overrides = overrides_of(lc, loading["overrides"])
    return lc.llama_model_load_from_file(os.fsencode(path), params)


def place(lc: ModuleType, params: Any, loading: Mapping[str, Any]) -> None:
    """Set where layers go. What `params` then points to lives as long as the process."""
    params.n_gpu_layers = loading["n_gpu_layers"]
    params.split_mode, params.main_gpu = loading["split_mode"], loading["main_gpu"]
    if loading["tensor_split"]:
        shares = (ctypes.c_float * max(128, lc.llama_max_devices()))(*loading["tensor_split"])
        params.tensor_split = shares
        KEPT.append(shares)
    if loading["n_gpu_layers"] and loading["tensors"]:
        _keep_tensors(lc, params, loading["tensors"])
    if loading["devices"]:
        by_name = ggml_function(lc, "ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
        found = [by_name(name.encode()) for name in loading["devices"]]
        chosen = (ctypes.c_void_p * (len(found) + 1))(*found)
        params.devices = ctypes.cast(chosen, ctypes.c_void_p)
        KEPT.append(chosen)


def _keep_tensors(lc: ModuleType, params: Any, patterns: Sequence[str]) -> None:
    """Keep tensors with such names in main memory."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    memory = ggml_function(lc, "ggml_backend_cpu_buffer_type", pointer)()
    flat = (pointer * (2 * len(patterns) + 2))()  # pattern and type of buffers; zeros end it
    for i, pattern in enumerate(patterns):
        KEPT.append(word := text(pattern.encode()))
        flat[2 * i], flat[2 * i + 1] = ctypes.cast(word, pointer), memory
    params.tensor_buft_overrides = ctypes.cast(flat, pointer)
    KEPT.append(flat)


def overrides_of(lc: ModuleType, pairs: Sequence[tuple[str, Any]]) -> Any:
    """Return llama.cpp's array of header values that replace the file's. It lives as long as the process."""
    array = (lc.llama_model_kv_override * (len(pairs) + 1))()  # an empty key ends it
    kinds = {bool: "BOOL val_bool", int: "INT val_i64", float: "FLOAT val_f64", str: "STR val_str"}
    for entry, (key, value) in zip(array, pairs, strict=False):
        kind, field = kinds[type(value)].split()
        entry.key, entry.tag = key.encode(), getattr(lc, f"LLAMA_KV_OVERRIDE_TYPE_{kind}")
        setattr(entry.value, field, value.encode() if isinstance(value, str) else value)
    KEPT.append(array)
    return array


def ggml_function(lc: ModuleType, name: str, restype: Any, *argtypes: Any) -> Any:
    """Return a function of ggml. The system also looks for it in the libraries that llama.cpp's own depends on."""
    try:
        return ctypes.CFUNCTYPE(restype, *argtypes)((name, lc._lib))  # noqa: SLF001
    except AttributeError:
        raise ImportError(f"llama.cpp has no {name}") from None


def trial(lc: ModuleType, path: str, loading: dict[str, Any]) -> str:
    """Load the model and decode; return what went wrong, or the empty string."""
    model = load_model(lc, path, loading)
    if not model:
        return "llama.cpp cannot load it"
    tokenize(lc, lc.llama_model_get_vocab(model))
    if loading["vocab_only"] or loading["beside"]:
        return ""  # nothing to decode without weights, or without a target
    if lc.llama_model_has_encoder(model):
        return "it has an encoder, whose text llama-cpp-python does not give it"
    return run(lc, model, loading)


def run(lc: ModuleType, model: Any, loading: dict[str, Any]) -> str:
    """Make a context as the run will, and decode."""
    seconds = 0.0 if loading["n_gpu_layers"] else loading["seconds"] * loading["n_threads"]
    with at_most(seconds):  # the file may claim a huge recurrent state
        context = make_context(lc, model, loading)
    if not context:
        return "llama.cpp cannot make a context for it"
    if not loading["embedding"] and not lc.llama_get_memory(context):
        return "it has no memory for tokens, so it does not answer token by token"
    if loading["lora"] and not adapt(lc, model, context, *loading["lora"]):
        return "its LoRA adapter cannot be put on it"
    with at_most(seconds):
        return decode(lc, model, context, loading)


def adapt(lc: ModuleType, model: Any, context: Any, path: str, scale: float) -> bool:
    """Apply a LoRA adapter to the context, and return whether that worked."""
    adapter = lc.llama_adapter_lora_init(model, os.fsencode(path))
    if not adapter:
        return False
    adapters, scales = (lc.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(scale)
    return bool(lc.llama_set_adapters_lora(context, adapters, 1, scales) == 0)


def tokenize(lc: ModuleType, vocab: Any) -> None:
    """Tokenize some texts: llama.cpp ends the process if the vocabulary contradicts itself."""
    kind = lc.llama_vocab_type(vocab)
    if kind == lc.LLAMA_VOCAB_TYPE_NONE:
        return
    texts = [b""]
    if kind == lc.LLAMA_VOCAB_TYPE_RWKV:
        # its trie never leaves a byte that begins tokens and is none
        texts += [bytes([byte]) for byte in range(256)]
    elif kind != lc.LLAMA_VOCAB_TYPE_SPM or has_bytes(lc, vocab):
        texts.append(TEXT)  # `GuardedTokenizer` refuses text that cannot be spelled
    room = (lc.llama_token * 256)()
    with at_most(MAX_SECONDS):
        for text in texts:
            for special in (False, True):
                lc.llama_tokenize(vocab, text, len(text), room, len(room), True, special)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Have the system end this process if the body takes more CPU time than this; 0 for no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def has_bytes(lc: ModuleType, vocab: Any) -> bool:
    """Whether the vocabulary has a token for each of the 256 bytes."""
    missing = {b"<0x%02X>" % byte for byte in range(256)}
    for token in range(lc.llama_vocab_n_tokens(vocab)):
        missing.discard(lc.llama_vocab_get_text(vocab, token))
        if not missing:
            return True
    return False


def make_context(lc: ModuleType, model: Any, loading: dict[str, Any]) -> Any:
    """Make a context as the run will, as far as kernels depend on it."""
    params = lc.llama_context_default_params()
    params.n_ctx = max(sum(ROWS) + SILENT, min(loading["n_ctx"], MAX_CONTEXT))
    params.n_batch = params.n_ubatch = max(ROWS)
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = loading["n_threads"]
    flash = (lc.LLAMA_FLASH_ATTN_TYPE_DISABLED, lc.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    params.flash_attn_type = flash[loading["flash_attn"]]
    params.offload_kqv = loading["offload_kqv"]
    for name in ("type_k", "type_v"):
        if loading[name] is not None:
            setattr(params, name, loading[name])
    params.embeddings = loading["embedding"]
    return lc.llama_init_from_model(model, params)


def decode(lc: ModuleType, model: Any, context: Any, loading: dict[str, Any]) -> str:
    """Decode 1, 8 and 64 rows, as far as the positions suffice, and check that logits are finite."""
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    done, most = 0, loading["positions"] or sum(ROWS) + SILENT
    for n in (rows for rows in ROWS if done + rows <= most):
        status = lc.llama_decode(context, batch_of(lc, n, done, n_vocab))
        if status != 0:
            return f"decoding {n} tokens returned {status}"
        done += n
        if loading["embedding"]:
            continue
        logits = lc.llama_get_logits_ith(context, n - 1)
        if not logits:
            return f"decoding {n} tokens gave no logits"
        if not all(map(math.isfinite, logits[:n_vocab])):
            return "its logits are not finite, so the weights are damaged"
    if done + SILENT <= most and not loading["embedding"]:
        batch = batch_of(lc, SILENT, done, n_vocab)
        ctypes.memset(batch.logits, 0, SILENT)
        if (status := lc.llama_decode(context, batch)) != 0:
            return f"decoding {SILENT} tokens without logits returned {status}"
    return ""


def batch_of(lc: ModuleType, n: int, start: int, n_vocab: int) -> Any:
    """Make a batch of `n` rows of one sequence from position `start`. Above 8 rows, only the last has logits."""
    batch = lc.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i] = (start + i) % n_vocab, start + i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, n <= 8 or i == n - 1
    return batch


def run_trial(path: str, address_space: str, loading: str) -> None:
    """Run the trial and report; an address space of 0 means no limit."""
    limit(**({"AS": int(address_space)} if int(address_space) else {}))
    # on a busy machine, spinning threads turn milliseconds of work into seconds
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    lc = bindings()
    errors = errors_of(lc)
    error = trial(lc, path, json.loads(loading))
    if error and errors:
        error = f"{error}: {errors[0]}"
    say(json.dumps({"ok": not error, "error": error}))
    os._exit(0)  # the result is known, and freeing gigabytes takes time


# -- conversions -------------------------------------------------------------------------------------------------------


def quantize(source: str, out: str, ftype: str, threads: str) -> None:
    lc = bindings()
    errors = errors_of(lc)
    lc.llama_backend_init()
    params = lc.llama_model_quantize_default_params()
    params.ftype = int(ftype)
    params.nthread = int(threads)
    params.allow_requantize = True
    status = lc.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    error = "" if status == 0 else " ".join(errors[-1:]) or f"status {status}"
    say(json.dumps({"ok": status == 0, "error": error}))


TASKS: Mapping[str, Callable[..., None]] = {"trial": run_trial, "quantize": quantize}

if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])
