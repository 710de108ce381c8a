"""This machine: its files and caches, processors, devices and child processes, and what other programs have on it."""
