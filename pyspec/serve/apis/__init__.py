"""The server's APIs, one module each; `serve/interface.py` says what an API consists of."""
