"""TLS on real servers and channels: both sides show a certificate of the fleet's authority, or nothing is said."""

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import node_manager_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.config import ConfigError
from motor_ft.wire.tls import TlsConfig
from tests.integration.wire.support import PLAIN, guard, serving
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def asked(server: TlsConfig, client: TlsConfig, listen: str = "127.0.0.1:0") -> None:
    """One call from a process with one section to a process with the other; raises what the client is told."""
    async with (
        serving(listen=listen, tls=server) as served,
        open_channel(served.address, tls=client.client()) as channel,
    ):
        await call(node_manager_pb2_grpc.NodeManagerServiceStub(channel).Guard, guard(), timeout=5)


async def refused(server: TlsConfig, client: TlsConfig) -> None:
    with pytest.raises(FtError) as error:
        await asked(server, client)
    assert error.value.reason is Reason.OUTCOME_UNKNOWN
    assert "UNAVAILABLE" in error.value.message


async def test_who_shows_a_certificate_of_the_authority_is_heard(authority: Authority) -> None:
    await asked(authority.tls("server"), authority.tls("client"))


async def test_nobody_else_is_heard(authority: Authority, tmp_path: Path) -> None:
    """Neither in plain text, nor without a certificate, nor with one that somebody else has signed."""
    server = authority.tls("server")
    for client in (
        PLAIN,
        TlsConfig(ca_file=authority.ca_file),
        msgspec.structs.replace(Authority(tmp_path, "other").tls("stranger"), ca_file=authority.ca_file),
    ):
        await refused(server, client)


async def test_no_other_server_is_believed(authority: Authority, tmp_path: Path) -> None:
    """Neither of another authority, nor at another address than its certificate names, nor in plain text."""
    client = authority.tls("client")
    for server in (Authority(tmp_path, "other").tls("server"), authority.tls("elsewhere", "motor-ft")):
        await refused(msgspec.structs.replace(server, client_certificates=False), client)
    await refused(PLAIN, client)


async def test_all_servers_may_have_one_name(authority: Authority) -> None:
    client = msgspec.structs.replace(authority.tls("client"), server_name="motor-ft")
    await asked(authority.tls("server", "motor-ft"), client)


async def test_a_server_that_wants_no_certificates_is_encrypted_all_the_same(authority: Authority) -> None:
    server = msgspec.structs.replace(authority.tls("server"), client_certificates=False)
    await asked(server, TlsConfig(ca_file=authority.ca_file))
    await refused(server, PLAIN)


async def test_a_socket_of_this_machine_is_in_plain_text(authority: Authority, tmp_path: Path) -> None:
    await asked(authority.tls("server"), authority.tls("client"), listen=f"unix:{tmp_path}/s")


async def test_whom_everybody_may_command_says_so(authority: Authority, tmp_path: Path) -> None:
    """Encrypted or not."""
    anybody = msgspec.structs.replace(authority.tls("anybody"), client_certificates=False)
    for tls, listen, warned in (
        (PLAIN, "0.0.0.0:0", True),
        (PLAIN, "127.0.0.1:0", False),
        (PLAIN, f"unix:{tmp_path}/s", False),
        (authority.tls("server"), "0.0.0.0:0", False),
        (anybody, "0.0.0.0:0", True),
        (anybody, "127.0.0.1:0", False),
    ):
        with capture_logs() as logs:
            async with serving(listen=listen, tls=tls):
                pass
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert bool(warnings) is warned, listen
        assert all(" tls" in entry["event"] for entry in warnings)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    """When they are read: gRPC itself would say nothing and fail every handshake."""
    server = authority.tls("server")
    missing, garbage = tmp_path / "missing.pem", tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for key in ("ca_file", "cert_file", "key_file"):
        with pytest.raises(ConfigError, match=rf"tls\.{key}: cannot read .*missing\.pem: No such file"):
            msgspec.structs.replace(server, **{key: str(missing)}).server()
        with pytest.raises(ConfigError, match=r"tls: .*garbage\.pem.* cannot be used together"):
            msgspec.structs.replace(server, **{key: str(garbage)}).client()
    with pytest.raises(ConfigError, match=r"cannot be used together.*MISMATCH"):
        msgspec.structs.replace(server, key_file=authority.tls("other").key_file).server()
    private = load_pem_private_key(Path(server.key_file).read_bytes(), None)
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(server.key_file).write_bytes(locked)
    with pytest.raises(ConfigError, match="or the key has a password"):
        server.server()


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"ca_file": "a", "cert_file": "c"}, "cert_file: needs key_file"),
        ({"ca_file": "a", "key_file": "k"}, "cert_file: needs key_file"),
        ({"cert_file": "c", "key_file": "k"}, "ca_file: must be given where cert_file is"),
        ({"server_name": "motor-ft"}, "server_name: has no effect without ca_file"),
        ({"client_certificates": False}, "client_certificates: has no effect without ca_file"),
    ],
)
def test_half_a_section_is_refused(section: dict[str, str | bool], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        TlsConfig(**section)  # type: ignore[arg-type]  # the keys are those of a file


def test_a_process_that_serves_does_not_encrypt_only_what_it_asks() -> None:
    with pytest.raises(ConfigError, match=r"^tls\.cert_file: must be given where ca_file is"):
        TlsConfig(ca_file="a").check_serves()
    PLAIN.check_serves()
