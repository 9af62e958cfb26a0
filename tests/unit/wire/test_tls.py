"""When the certificate of a process ends."""

import math
from datetime import UTC, datetime
from pathlib import Path

import trustme

from motor_ft.wire.tls import TlsConfig


def test_it_ends_when_the_first_of_its_file_does(tmp_path: Path) -> None:
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2040, 2050)]
    authority, file = trustme.CA(), tmp_path / "chain.pem"
    issued = [authority.issue_cert("127.0.0.1", not_after=end) for end in ends]
    file.write_bytes(b"subject=fleet\n" + b"".join(each.cert_chain_pems[0].bytes() for each in issued))
    assert TlsConfig(ca_file="ca.pem", cert_file=str(file), key_file="key.pem").not_after() == ends[0].timestamp()


def test_without_a_certificate_none_ends_and_of_a_damaged_one_nothing_is_known(tmp_path: Path) -> None:
    assert TlsConfig(ca_file="ca.pem").not_after() == math.inf
    file = tmp_path / "own.pem"
    own = TlsConfig(ca_file="ca.pem", cert_file=str(file), key_file="key.pem")
    assert math.isnan(own.not_after())
    whole = trustme.CA().cert_pem.bytes().splitlines()
    for damaged in (b"", b"no certificate", b"\n".join([*whole[:3], whole[-1]])):
        file.write_bytes(damaged)
        assert math.isnan(own.not_after())
