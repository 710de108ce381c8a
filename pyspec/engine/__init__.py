"""The loop over the C engine: rounds, sessions, and the models beside the target."""
