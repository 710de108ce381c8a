"""Makes what cffi reads of a header: `python cdef.py pyspec.h OUT`; prints the key of the interface.

The key is a hash of the declarations. `pyspec/_version.py` computes it from a clone's header, so that sources and an extension
that do not belong together are told apart whatever their version says.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path


def declarations(header: str) -> str:
    """C without comments, preprocessor lines and `extern "C"`."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$|\n(?=\n)", "", text, flags=re.MULTILINE).strip() + "\n"


def key(header: str) -> str:
    """What stands for the interface."""
    return hashlib.sha256("".join(declarations(header).split()).encode()).hexdigest()[:16]


if __name__ == "__main__":
    source = Path(sys.argv[1]).read_text(encoding="utf-8")
    Path(sys.argv[2]).write_text(declarations(source), encoding="utf-8")
    sys.stdout.write(key(source))
