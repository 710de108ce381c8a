"""The target as a `llama_cpp.Llama` that is tried before it is loaded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import llama_cpp

from pyspec.store.check import Loading, check_model


class TargetLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """A `llama_cpp.Llama` whose file is first loaded in a child process, if it was not seen before.

    trust: read only the file's header instead. extra_buffers: whether llama.cpp may copy weights into layouts of its own
    (AMX, repacking); "auto" says yes unless that crashes on this machine, "on" and "off" decide it.
    Raises ModelNotFound, ModelUnreadable, ModelInvalid or ModelRejected.
    """

    def __init__(
        self, model_path: str, *, trust: bool = False, extra_buffers: str = "auto", **kwargs: Any
    ) -> None:
        self._stack = ExitStack()  # the base class closes it, also when the file is refused below
        self.trust = trust
        self.loading = Loading(
            n_gpu_layers=kwargs.get("n_gpu_layers", 0),
            n_ctx=kwargs.get("n_ctx", 512),
            n_threads=kwargs.get("n_threads") or 2,
            flash_attn=bool(kwargs.get("flash_attn", False)),
            extra_buffers=extra_buffers,
        )
        self._may_use_extra = check_model(model_path, trust, self.loading)
        super().__init__(model_path, **kwargs)

    @property
    def model_params(self) -> Any:
        """What the model is loaded with; `llama_cpp.Llama` fills it, and has no argument for extra buffers."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts = self._may_use_extra
        self._model_params = params
