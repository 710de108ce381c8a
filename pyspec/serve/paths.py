"""The paths of each interface."""

from __future__ import annotations

from typing import Any

from pyspec.serve.apis.completions import CHATS, TEXTS
from pyspec.serve.apis.interface import Interface
from pyspec.serve.apis.llama_server import INFILL
from pyspec.serve.apis.messages import COUNTS, MESSAGES
from pyspec.serve.apis.ollama import OLLAMA_CHATS, OLLAMA_TEXTS
from pyspec.serve.apis.responses import RESPONSE_COUNTS, RESPONSES

INTERFACES = {
    "/v1/chat/completions": CHATS,
    "/v1/completions": TEXTS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/infill": INFILL,
    "/api/chat": OLLAMA_CHATS,
    "/api/generate": OLLAMA_TEXTS,
}

TOKEN_COUNTS: dict[str, tuple[Any, dict[str, str]]] = {
    "/v1/messages/count_tokens": (COUNTS, {}),
    "/v1/responses/input_tokens": (RESPONSE_COUNTS, {"object": "response.input_tokens"}),
}
"""Paths that count a request's tokens: the reader of its body, and further fields of the response."""

_CHATS = ("/chat/completions", "/completions", "/responses", "/messages")
SHORT = (*_CHATS, "/messages/count_tokens", "/responses/input_tokens")
"""Paths that may also be called without /v1."""

SERVED = (
    *(
        f"POST {path}"
        for path in (*INTERFACES, *TOKEN_COUNTS, "/tokenize", "/detokenize", "/v1/embeddings")
    ),
    *(f"GET {path}" for path in ("/v1/models", "/health", "/metrics", "/api/tags")),
)
"""Paths that a 404 lists."""


def interface_at(path: str) -> Interface | None:
    whole = whole_path(path)
    found = INTERFACES.get(whole.rpartition("/")[0] if whole in TOKEN_COUNTS else whole)
    return OLLAMA_CHATS if found is None and path.startswith("/api/") else found


def whole_path(path: str) -> str:
    """The path, with /v1 in front where it may be left out."""
    return f"/v1{path}" if path in SHORT else path
