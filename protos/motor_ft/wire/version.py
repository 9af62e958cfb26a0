"""Which motor-ft this is."""

import argparse
from importlib.metadata import version


def add_version(parser: argparse.ArgumentParser) -> None:
    """Let a command say its version."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('motor-ft')}")
