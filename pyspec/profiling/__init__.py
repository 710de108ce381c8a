"""Measures what a pair of models, or a tensor type of a target, is worth on this machine."""
