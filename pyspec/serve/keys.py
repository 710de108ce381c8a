"""Who may use a server, and whose texts are whose."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from starlette.exceptions import HTTPException


class Keys:
    """The keys of a server, one a line; None where everybody may use it."""

    def __init__(self, lines: str | None) -> None:
        self._keys = None if lines is None else [key.encode() for key in lines_of(lines)]

    def holder(self, headers: Mapping[str, str]) -> str:
        """Names whose key a request brings, "" where there is one key at most. Raises HTTPException for a request without one.

        A proxy may send credentials of its own beside the key, so that either header may have it.
        """
        if self._keys is None:
            return ""
        scheme, _, told = headers.get("authorization", "").partition(" ")
        given = [(told.strip() or scheme).encode(), headers.get("x-api-key", "").encode()]
        # each is compared with each: how long it takes tells nothing
        found = [key for key in self._keys for one in given if hmac.compare_digest(one, key)]
        if not found:
            raise HTTPException(
                401, "the API key is missing or wrong: Authorization: Bearer KEY, or x-api-key: KEY"
            )
        return hashlib.sha256(found[0]).hexdigest()[:32] if len(self._keys) > 1 else ""


def lines_of(text: str) -> list[str]:
    """The keys in a text, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))
