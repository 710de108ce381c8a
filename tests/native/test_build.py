"""What the compiled extension shows to the world, and what its sources may know."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

from pyspec import _native


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("nm"), reason="reads ELF symbols with nm"
)
def test_one_symbol_is_exported():
    """Only the module's init function is visible, so no name can clash with another library's."""
    command = ["nm", "-D", "--defined-only", _native.__file__]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__native"]


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("readelf"), reason="reads ELF headers"
)
def test_no_llama_library_is_linked():
    command = ["readelf", "-d", _native.__file__]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listed)
    assert [name for name in needed if not name.startswith(("libc.", "libm.", "ld-"))] == []


ABI = r"""
#define llama_batch ps_llama_batch
#define llama_token_data ps_llama_token_data
#define llama_token_data_array ps_llama_token_data_array
#include "llama_abi.h"
#undef llama_batch
#undef llama_token_data
#undef llama_token_data_array
#include "llama.h"

#define SAME_SIZE(type) _Static_assert(sizeof(struct type) == sizeof(struct ps_##type), #type)
#define SAME(type, field)                                                                                     \
    _Static_assert(offsetof(struct type, field) == offsetof(struct ps_##type, field), #type "." #field);       \
    _Static_assert(sizeof(((struct type *)0)->field) == sizeof(((struct ps_##type *)0)->field), #type "." #field)
%s

/* the same prototypes but for the structs, which are ours under another name and proven equal above */
#define llama_batch_OURS struct llama_batch
#define SIGNATURE(result, name, parameters) typedef result (*ours_##name) parameters;
#define ps_llama_batch llama_batch
#define ps_llama_token_data_array llama_token_data_array
PS_LLAMA_API(SIGNATURE)
#define COMPATIBLE(result, name, parameters) \
    _Static_assert(__builtin_types_compatible_p(ours_##name, __typeof__(&llama_##name)), #name);
PS_LLAMA_API(COMPATIBLE)
"""


def test_declared_abi_is_the_installed_headers(native, tmp_path):
    declared = (native / "ps_api.c").read_text()
    fields = [f"SAME({t}, {f});" for t, f in re.findall(r"OFFSET\((llama\w+), (\w+)\)", declared)]
    sizes = [f"SAME_SIZE({t});" for t in re.findall(r"SIZE\((llama\w+)\)", declared)]
    assert len(fields) == 14
    assert len(sizes) == 3
    source = tmp_path / "abi.c"
    source.write_text(ABI % "\n".join(sizes + fields))
    installed = Path(llama_cpp.__file__).parents[1] / "include"
    words = ["-std=gnu11", "-fsyntax-only", "-Wall", f"-I{native}", f"-I{installed}", str(source)]
    compiled = subprocess.run(["cc", *words], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
