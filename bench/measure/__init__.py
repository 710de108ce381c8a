"""Comparisons: `pyspec bench` and `quality`, and what the scripts beside this folder share. Imported as `pyspec.measure`."""
