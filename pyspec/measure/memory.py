"""Peak memory of a configuration: a process of its own loads it, answers once and says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspec.errors import MeasureError

_PROMPT = "Write one sentence about the sea."
_TOKENS = 24


def peak_mib(configuration: dict[str, Any], timeout_s: float = 300.0) -> float:
    """Peak resident MiB of a fresh process with this configuration.

    configuration: `kind` ("pyspec", "llama_cpp" or "llama_cpp-lookup"), `target`, and what the
    constructors take (n_ctx, n_threads, n_gpu_layers; draft and companion for pyspec).
    Raises MeasureError where the process fails.
    """
    if configuration["kind"] != "pyspec":  # found out here, so that the child holds the peer alone
        from pyspec.store.check import extra_buffers  # noqa: PLC0415 - not in the child

        configuration = {**configuration, "extra_buffers": extra_buffers()}
    command = [sys.executable, "-m", "pyspec.measure.memory", json.dumps(configuration)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
        return float(json.loads(done.stdout)["peak_mib"])
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"measuring memory failed: {type(error).__name__}") from None


def resident_peak() -> float:
    """Of this process, since its start, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage counts what the parent held at the fork, which may be more than this process ever has
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _answer(configuration: dict[str, Any]) -> None:
    kind, path = configuration.pop("kind"), configuration.pop("target")
    if kind == "pyspec":
        from pyspec.llama import SpeculativeLlama  # noqa: PLC0415 - the peer's memory has none of it

        llm: Any = SpeculativeLlama(path, **configuration)
    else:
        import llama_cpp  # noqa: PLC0415 - as above

        from pyspec.plain import PlainLlama  # noqa: PLC0415 - as above

        if kind == "llama_cpp-lookup":
            draft = llama_cpp.llama_speculative.LlamaPromptLookupDecoding()
            configuration["draft_model"] = draft
        llm = PlainLlama(path, verbose=False, **configuration)
    llm.create_completion(_PROMPT, max_tokens=_TOKENS, temperature=0.0)
    llm.close()


if __name__ == "__main__":
    _answer(json.loads(sys.argv[1]))
    print(json.dumps({"peak_mib": round(resident_peak(), 1)}))  # noqa: T201 - its answer
