"""Addresses and URLs of a configuration: what cannot be one is an error when it is read, not when it is used."""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from motor_ft.wire.config import ConfigError, check, check_once, numbered

_EVERYWHERE = frozenset({"0.0.0.0", "::"})


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets); raises ConfigError for anything else."""
    host, _, port = address.rpartition(":")
    if not _is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"{address!r} must be host:port with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_local(address: str) -> bool:
    """Only processes of this machine reach it."""
    if address.startswith("unix:"):
        return True
    host, _ = split_address(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(key: str, host: str) -> None:
    """Raise ConfigError for ``key`` unless it is a name, or an address (IPv6 in brackets)."""
    check(_is_host(host), key, f"{host!r} must be a host's name or address, IPv6 in brackets")


def check_listen(key: str, address: str, *, unix: bool = False) -> None:
    """Raise ConfigError for ``key`` unless one can listen there: ``host:port``, 0 for any, or also ``unix:/path``."""
    if unix and address.startswith("unix:/"):
        return
    try:
        split_address(address)
    except ConfigError:
        check(False, key, f"must be host:port{' or unix:/path' if unix else ''}, not {address!r}")


def check_peer(key: str, address: str, *, unix: bool = False) -> None:
    """Raise ConfigError for ``key`` unless one can connect to it."""
    check_listen(key, address, unix=unix)
    check(not re.search(":0+$", address), key, f"must have a port above 0, not {address!r}")


def check_found(key: str, host: str) -> None:
    """Raise ConfigError for ``key`` if it says to others that this process is everywhere; it is an address already."""
    check(host.strip("[]") not in _EVERYWHERE, key, f"{host} is everywhere: name the host at which others reach it")


def check_url(key: str, url: str, *schemes: str, path: bool = False) -> None:
    """Raise ConfigError for ``key`` unless it is ``scheme://host:port``; with ``path`` also more or less than that."""
    try:
        parts = urlsplit(url)
        address = parts.netloc if parts.port is not None or not path else f"{parts.netloc}:1"
        check_peer(key, address)
        plain = url == f"{parts.scheme}://{parts.netloc}{parts.path if path else ''}"
    except ValueError:  # a ConfigError too
        plain, parts = False, urlsplit("")
    what = " or ".join(f"{scheme}://host:port" for scheme in schemes)
    check(plain and parts.scheme in schemes, key, f"must be {what}, not {url!r}")


def check_peers(key: str, addresses: Sequence[str]) -> None:
    """Raise ConfigError unless one can connect to each of them, and each is another one."""
    for number, address in enumerate(addresses):
        check_peer(f"{key}[{number}]", address)
    check_once(numbered(key, addresses))


def check_apart(listens: Mapping[str, str]) -> None:
    """Raise ConfigError for a key whose ``host:port`` an earlier key has: only one process can listen there.

    All are checked already. Empty ones and ``unix:`` are left out, and port 0, which is any that is free.
    """
    taken: dict[str, tuple[str, int]] = {}
    for key, address in listens.items():
        if not address or address.startswith("unix:"):
            continue
        host, port = split_address(address)
        for other, (its_host, its_port) in taken.items():
            same = port == its_port != 0 and (host == its_host or not _EVERYWHERE.isdisjoint((host, its_host)))
            check(not same, key, f"{address} is where {other} listens already: give it another port")
        taken[key] = host, port


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return re.fullmatch(r"[\w.-]+", host, re.ASCII) is not None
    try:
        IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True
