"""The server's APIs, one module each; interface.py defines what an API consists of."""
