"""API keys: the clients that may use a server, and the owner of each request."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from starlette.exceptions import HTTPException


class Keys:
    """A server's API keys, one a line; None for a server that needs none."""

    def __init__(self, lines: str | None) -> None:
        self._keys = None if lines is None else [key.encode() for key in lines_of(lines)]

    def holder(self, headers: Mapping[str, str]) -> str:
        """A name for the holder of a request's key, "" where there is one key at most. Raises HTTPException without a valid key.

        The key may be in either header, since a proxy may use the other for its own credentials.
        """
        if self._keys is None:
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        sent = [(bearer.strip() or scheme).encode(), headers.get("x-api-key", "").encode()]
        # every pair is compared, so that the time taken reveals nothing
        found = [key for key in self._keys for one in sent if hmac.compare_digest(one, key)]
        if not found:
            raise HTTPException(
                401, "the API key is missing or wrong: Authorization: Bearer KEY, or x-api-key: KEY"
            )
        return hashlib.sha256(found[0]).hexdigest()[:32] if len(self._keys) > 1 else ""


def lines_of(text: str) -> list[str]:
    """Keys in a text, without duplicates."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))
