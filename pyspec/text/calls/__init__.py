"""Calls of tools as families of models write them: each can be read, and told as a grammar."""
