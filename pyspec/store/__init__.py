"""Known models, the cache of fetched files, and the checks before a file is trusted."""
