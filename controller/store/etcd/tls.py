"""Credentials for channels to etcd."""

import grpc

from motor_ft.wire.tls import read_pems


def channel_credentials(ca_file: str, cert_file: str, key_file: str) -> grpc.ChannelCredentials:
    """Read PEM files; without a name: the system's authorities, no certificate of our own. Raises ConfigError."""
    return grpc.ssl_channel_credentials(*read_pems("store.etcd", ca_file, cert_file, key_file))
