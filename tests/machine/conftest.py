"""Every test of this room has a cache of its own."""

from helpers.own_cache import home, own_cache, shop, tiny, tiny_bytes

__all__ = ["home", "own_cache", "shop", "tiny", "tiny_bytes"]
