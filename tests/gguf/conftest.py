"""Every test of this room has a cache of its own."""

from helpers.own_cache import own_cache, shop, tiny, tiny_bytes

__all__ = ["own_cache", "shop", "tiny", "tiny_bytes"]
