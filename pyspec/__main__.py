"""`python -m pyspec` is the command `pyspec`."""

from pyspec.cli.main import main

main()
