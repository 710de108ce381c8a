"""Every exception that pyspec raises on purpose.

    PyspecError
    ├── ModelError (also a ValueError)
    │   └── ModelNotFound, ModelUnreadable, ModelInvalid, ModelRejected
    ├── InputError
    │   └── InputEncoding, InputTooLong, ThreadUnsupported, OptionError
    ├── EngineError
    │   └── NoMemory, NumericError, Cancelled, EngineBusy
    └── TemplateError, DraftMismatch, DraftError, UnsupportedModel, FetchError, ContextOverflow, TrainingError,
        BatchWriteError, ResumeMismatch, DeadlineExceeded, ShuttingDown, TooManyRequests, AnswerFailed

Catch `PyspecError` for all of them. Each carries `message` (what happened) and `hint` (what to do).
"""

from __future__ import annotations

Http = tuple[int, str | None]


class PyspecError(Exception):
    """Base of all pyspec errors; never raised itself.

    Args:
        message: What happened.
        hint: What to do about it; may be empty.

    Attributes:
        exit_code: Exit status of the command line: 1 for a failure, 2 for a usage error.
        http: Status of a request that fails so, and the code by which OpenAI's clients know it.
    """

    exit_code = 1
    http: Http = (500, None)

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ModelError(PyspecError, ValueError):
    """A model file cannot be used; also a ValueError, since llama-cpp-python raises that."""

    http: Http = (503, None)


class ModelNotFound(ModelError):
    """No such file, or no such name in the manifest."""

    http = (404, "model_not_found")


class ModelUnreadable(ModelError):
    """A directory, a device, a FIFO, or a file without permission."""


class ModelInvalid(ModelError):
    """The header or the tensors contradict the file."""


class ModelRejected(ModelError):
    """The trial load in a child process died or failed.

    Attributes:
        signal: Number of the signal that it died of, or None.
    """

    def __init__(self, message: str, hint: str = "", signal: int | None = None) -> None:
        super().__init__(message, hint)
        self.signal = signal


class TemplateError(PyspecError):
    """A model's own chat template fails, or takes too much time or memory."""

    http = (503, None)


class DraftMismatch(PyspecError):
    """Draft or companion has another vocabulary than the target."""

    http = (503, None)


class DraftError(PyspecError):
    """A drafter raised, or returned ids that cannot be verified."""


class UnsupportedModel(PyspecError):
    """An architecture that cannot generate, or whose memory cannot be rolled back, or that has too few positions."""

    http = (503, None)


class FetchError(PyspecError):
    """A model file could not be fetched or did not match its sha256."""


class InputError(PyspecError):
    """What the user gave cannot be used."""

    exit_code = 2
    http: Http = (400, None)


class InputEncoding(InputError):
    """Bytes that are not UTF-8."""


class ThreadUnsupported(InputError):
    """A request of Anthropic's interface asks for a stored conversation. Clients then go on without one."""

    http = (400, "thread_unsupported_request")


class InputTooLong(InputError):
    """Larger than the stated limit."""


class OptionError(InputError):
    """An option outside its range."""


class ContextOverflow(PyspecError):
    """The prompt needs more tokens than the context has.

    Args:
        have: Size of the context, in tokens.
        need: Length of the prompt, in tokens.
        hint: What to do about it.
        counted: False if `need` is only a lower bound.
    """

    http = (400, "context_length_exceeded")

    def __init__(self, have: int, need: int, hint: str = "", *, counted: bool = True) -> None:
        super().__init__(
            f"the prompt has {'' if counted else 'at least '}{need} tokens and the context holds {have}",
            hint or "shorten the prompt, or raise n_ctx with -c",
        )
        self.have = have
        self.need = need


class EngineError(PyspecError):
    """llama.cpp or the extension refused a call.

    Attributes:
        code: The extension's `ps_status`.
    """

    http = (503, None)

    def __init__(self, message: str, hint: str = "", code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code


class NoMemory(EngineError):
    """A context does not fit into the memory of this machine or of a device."""


class NumericError(EngineError):
    """A logit is not finite: the weights are damaged."""


class Cancelled(EngineError):
    """The cancel flag was raised while the engine worked."""


class EngineBusy(EngineError):
    """One engine was used by two threads at once."""


class TrainingError(PyspecError):
    """The training recipe cannot go on."""


class BatchWriteError(PyspecError):
    """The output of a batch cannot be written."""


class ResumeMismatch(PyspecError):
    """A journal belongs to other inputs, models or options."""


class DeadlineExceeded(PyspecError):
    """An answer took longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the answer was not complete after {seconds:g} s",
            "allow more with timeout, --timeout on the command line",
        )


class ShuttingDown(PyspecError):
    """A server is shutting down and accepts nothing more."""

    http = (503, "shutting_down")


class TooManyRequests(PyspecError):
    """More requests were made to a server than may wait."""

    http = (429, "rate_limit_exceeded")


class AnswerFailed(PyspecError):
    """An answer of a server failed. kind: name of the exception that it failed with."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.http = _FAILED.get(kind, 500), kind


_FAILED = {"InputError": 400, "OptionError": 400, "Cancelled": 503}  # statuses; 500 for others
