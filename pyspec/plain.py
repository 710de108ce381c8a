"""`llama_cpp.Llama` as it is, on processors too where its own defaults would end the process."""

from __future__ import annotations

from typing import Any

import llama_cpp


class PlainLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """What comparisons are made with: nothing of ours but the extra buffers, for which `llama_cpp.Llama` has no argument.

    extra_buffers: whether weights may go to layouts of llama.cpp's own; `pyspec.store.check.extra_buffers()` knows.
    """

    def __init__(self, model_path: str, *, extra_buffers: bool, **kwargs: Any) -> None:
        self._may_use_extra = extra_buffers
        super().__init__(model_path, **kwargs)

    @property
    def model_params(self) -> Any:
        """What the model is loaded with."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts = self._may_use_extra
        self._model_params = params
