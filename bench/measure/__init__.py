"""Comparisons: `pyspec bench` and `quality`, and what the scripts in `bench` share with them. Imported as `pyspec.measure`."""
