"""The server's APIs, a module each; interface.py says what one takes."""
