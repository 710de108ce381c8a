"""Warnings of Ray about itself, which no test of ours is to fail on."""

import pytest

OF_RAY = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning")
    for kind in ("Deprecation", "Future", "User", "Resource")
]
