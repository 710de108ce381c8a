"""How properties are run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_no_property_fails_for_being_slow() -> None:
    """A busy machine takes longer for examples than hypothesis allows by default."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
