"""Grammars that constrain answers. They are untrusted, so they are bounded and run in isolated processes."""
