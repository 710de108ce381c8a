"""Processors on which llama.cpp's extra weight buffers crash: how tests live there, and how one is stood in for.

`python amx.py trial ...` runs the trial as such a one would. A decode of several rows then aborts if the model was loaded with
extra buffers, as AMX's kernels do when GCC 12 compiled them; a decode of one row does not go there.
"""

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import Any

READ: dict[str, Any] = {}
"""What reads the option `extra_buffers`, where `leave_extra_off` took its place."""


def leave_extra_off() -> None:
    """Load every model of this process without extra buffers that would end it, if they would.

    Of `llama_cpp`'s own default too: `llama_cpp.Llama` has no argument for it.
    """
    import llama_cpp

    from pyspec.gguf import check
    from pyspec.hub.fetch import cached
    from pyspec.hub.sources import load_manifest

    probe = cached(load_manifest().get("smollm2-companion"))
    if probe is None or check.check_model(probe):
        return
    READ["extra_buffers"] = check.extra_buffers
    check.extra_buffers = lambda option="auto": option == "on"
    default = llama_cpp.llama_cpp.llama_model_default_params

    def without() -> Any:
        params = default()
        params.use_extra_bufts = False
        return params

    for module in (llama_cpp, llama_cpp.llama_cpp):
        module.llama_model_default_params = without


def main() -> None:
    package = Path(str(importlib.util.find_spec("pyspec.machine").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    child = runpy.run_path(str(package / "child.py"), run_name="child")
    bindings = child["bindings"]

    def crashing() -> Any:
        lc = bindings()
        load, decode = lc.llama_model_load_from_file, lc.llama_decode
        extra = []

        def load_noted(path: bytes, params: Any) -> Any:
            extra.append(params.use_extra_bufts)
            return load(path, params)

        def decode_or_die(context: Any, batch: Any) -> int:
            if extra[-1] and batch.n_tokens > 1:
                os.abort()
            return int(decode(context, batch))

        lc.llama_model_load_from_file, lc.llama_decode = load_noted, decode_or_die
        return lc

    child["run_trial"].__globals__["bindings"] = crashing
    child["run_trial"](*sys.argv[2:])


if __name__ == "__main__":
    main()
