"""Measuring: speed against peers, quality under the margin rule, and the profile of a machine."""
