"""Signals while a program is still being imported; so this module imports nothing heavy itself."""

import os
import signal


def end_quietly() -> None:
    """Let SIGTERM and SIGINT end the process at once with exit code 0, until something else handles them.

    For the time in which nothing has been begun that would have to end in order. An exception would not do: it could
    be lost in whatever code the signal interrupts.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
