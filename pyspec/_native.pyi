"""The C extension: what cffi makes of native/pyspec.cdef.h."""

from typing import Any

ffi: Any
lib: Any
