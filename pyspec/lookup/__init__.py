"""Drafts from earlier text: drafters in Python, and the memory of texts behind them."""
