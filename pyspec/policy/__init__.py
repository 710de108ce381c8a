"""The choice of draft length: what it costs, what it will bring, and when not to speculate."""
