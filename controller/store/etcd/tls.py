"""Credentials for channels to etcd."""

import grpc

from motor_ft.wire.tls import read_pem


def channel_credentials(ca_file: str, cert_file: str, key_file: str) -> grpc.ChannelCredentials:
    """Read PEM files; without a name: the system's authorities, no certificate of our own. Raises ConfigError."""
    ca, key, chain = (read_pem("store.etcd", name) for name in (ca_file, key_file, cert_file))
    return grpc.ssl_channel_credentials(ca, key, chain)
