"""Known models, the cache of fetched files, and the checks of a file before it is loaded."""
