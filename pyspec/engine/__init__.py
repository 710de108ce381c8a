"""The loop over the C engine: rounds, sessions, and the models that draft for the target."""
