"""Known models: the manifest, and the small GGUF files that ship with the package."""
