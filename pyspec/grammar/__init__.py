"""What an answer has to look like: grammars of strangers, bounded, and run where they can harm nobody."""
