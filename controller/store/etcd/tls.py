"""Credentials for channels to etcd."""

from pathlib import Path

import grpc

from motor_ft.wire.config import ConfigError


def channel_credentials(ca_file: str, cert_file: str, key_file: str) -> grpc.ChannelCredentials:
    """Read PEM files; without a name: the system's authorities, no certificate of our own. Raises ConfigError."""
    ca, key, chain = (_read(name) if name else None for name in (ca_file, key_file, cert_file))
    return grpc.ssl_channel_credentials(ca, key, chain)


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"store.etcd: cannot read {name}: {error.strerror}") from error
