"""Addresses that a server listens on."""

import re

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import ConfigError


def split_address(listen: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets); raises ConfigError for anything else."""
    host, _, port = listen.rpartition(":")
    if not host or "/" in host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"cannot listen on {listen!r}: must be host:port with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def cannot_listen(listen: str) -> FtError:
    """Return the error for an address that could not be bound."""
    text = (
        f"cannot listen on {listen}: another process has it, or it is no address of this host; "
        "choose another address or stop that process"
    )
    return FtError(Reason.PORT_UNAVAILABLE, text, address=listen)
