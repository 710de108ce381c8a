"""The C extension: what cffi makes of native/pyspec.h."""

from typing import Any

ffi: Any
lib: Any
