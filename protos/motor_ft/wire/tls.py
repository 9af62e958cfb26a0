"""TLS of gRPC between our own processes: one section of the configuration, the same in each of them."""

import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import msgspec
from cryptography import x509

from motor_ft.wire.config import ConfigError, check
from motor_ft.wire.log import get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """PEM files; a server takes renewed ones with the next handshake, a client with the next channel that it opens.

    Without ``ca_file`` nothing is encrypted and nobody is asked who they are.

    A process shows the same certificate to its clients and to servers; every server wants one of its clients that the
    authority has signed, unless ``client_certificates`` is false.
    """

    ca_file: str = ""
    """Authority that has signed the certificates of all processes of the fleet."""
    cert_file: str = ""
    """Own certificate, with what leads to the authority."""
    key_file: str = ""
    server_name: str = ""
    """Name in the certificates of all servers; empty where each names the address under which it is reached."""
    client_certificates: bool = True
    """This server wants a certificate of every client."""

    def __post_init__(self) -> None:
        check(bool(self.cert_file) == bool(self.key_file), "cert_file", "needs key_file, and the other way round")
        check(bool(self.ca_file) or not self.cert_file, "ca_file", "must be given where cert_file is")
        alone = "has no effect without ca_file: give that too, or leave this out"
        check(bool(self.ca_file) or not self.server_name, "server_name", alone)
        check(bool(self.ca_file) or self.client_certificates, "client_certificates", alone)

    def check_serves(self) -> None:
        """Raise ConfigError where a process that serves gRPC would encrypt only what it asks of others."""
        check(not self.ca_file or bool(self.cert_file), "tls.cert_file", "must be given where ca_file is")

    def check_files(self) -> None:
        """Raise ConfigError for files that cannot be used, as a start would."""
        self.client()
        self.server()

    def client(self) -> "ClientTls | None":
        """For channels; None for plain text. Raises ConfigError for files that cannot be used."""
        return ClientTls(self) if self.ca_file else None

    def server(self) -> grpc.ServerCredentials | None:
        """For a server; None for plain text. Raises ConfigError for files that cannot be used."""
        if not self.cert_file:
            return None
        renewal = _Renewal(self, self.certificate)
        fetch = renewal.fetch  # None means unchanged, which the stubs do not know
        return grpc.dynamic_ssl_server_credentials(renewal.first, fetch, self.client_certificates)  # type: ignore[arg-type]

    def certificate(self) -> grpc.ServerCertificateConfiguration:
        """What a server shows and whom it believes now. Raises ConfigError for files that cannot be used."""
        ca, key, cert = self._files()
        return grpc.ssl_server_certificate_configuration([(key or b"", cert or b"")], ca)

    def not_after(self) -> float:
        """End of the own certificate as its file is now, seconds since the epoch: infinite without one, NaN for another
        file than one."""
        if not self.cert_file:
            return math.inf
        try:
            certificate = x509.load_pem_x509_certificate(Path(self.cert_file).read_bytes())
        except (OSError, ValueError):
            return math.nan
        return certificate.not_valid_after_utc.timestamp()

    def identity(self) -> grpc.ChannelCredentials:
        """What a client shows and whom it believes now. Raises ConfigError for files that cannot be used."""
        ca, key, cert = self._files()
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        return read_pems("tls", self.ca_file, self.cert_file, self.key_file)


class _Renewal(Generic[T]):
    """What ``read`` makes of the files as they are at each handshake, of the last good ones while those are of no use.

    A server's is asked by threads of gRPC.
    """

    def __init__(self, config: TlsConfig, read: Callable[[], T]) -> None:
        self._config = config
        self._read = read
        self._seen = self._state()
        self.first = read()

    def fetch(self) -> T | None:
        """What is new since the last handshake, None to go on with what is."""
        if (state := self._state()) == self._seen:
            return None
        try:
            renewed = self._read()
        except ConfigError as error:
            self._seen = state
            _log.warning("renewed TLS files are not used, the old ones are", problem=str(error))
            return None
        if self._state() != state:
            return None  # written just now: what was read may be of two generations; the next handshake looks again
        self._seen = state
        return renewed

    def _state(self) -> list[tuple[int, int, int, int] | None]:
        """Say of each file which one it is; through links, for Kubernetes swaps the one to their directory."""
        return [_state(name) for name in (self._config.ca_file, self._config.cert_file, self._config.key_file)]


class ClientTls:
    """What channels need; ``server_name`` is what the server's certificate must say, empty for its address."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises ConfigError for files that cannot be used."""
        self.server_name = config.server_name
        self._renewal = _Renewal(config, config.identity)
        self._credentials = self._renewal.first

    def credentials(self) -> grpc.ChannelCredentials:
        """For one more channel."""
        self._credentials = self._renewal.fetch() or self._credentials
        return self._credentials


def _state(name: str) -> tuple[int, int, int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_pems(
    where: str, ca_file: str, cert_file: str, key_file: str
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return authority, key and certificate as gRPC takes them, None without a name.

    Raises ConfigError that says ``where`` they are configured. Looked at here, for gRPC says nothing of files that it
    cannot use but fails every handshake.
    """
    files = {"ca_file": ca_file, "key_file": key_file, "cert_file": cert_file}
    ca, key, cert = (read_file(f"{where}.{option}", name) for option, name in files.items())
    context = ssl.create_default_context()
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file, password="")  # else it asks the terminal for one
    except OSError as error:  # of ssl, or a file that has been swapped since it was read
        named = ", ".join(filter(None, (ca_file, cert_file, key_file)))
        raise ConfigError(f"{where}: {named} cannot be used together, or the key has a password: {error}") from error
    return ca, key, cert


def read_file(key: str, name: str) -> bytes | None:
    """Return the content of a file, None without a name; raises ConfigError for ``key``, which has named it."""
    try:
        return Path(name).read_bytes() if name else None
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {name}: {error.strerror}") from error
