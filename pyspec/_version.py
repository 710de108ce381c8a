"""The installed version, as the package's metadata has it."""

from importlib.metadata import version

__version__ = version("pyspec-llama")
