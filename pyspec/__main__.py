"""`python -m pyspec` is the command `pyspec`."""

import sys


def run() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as it does later, without a traceback."""
    try:
        from pyspec.cli.main import main  # noqa: PLC0415 - see above

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
