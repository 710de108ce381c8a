"""Model files, which nobody trusts: readers of headers and vocabularies, and the trial in a child process."""
