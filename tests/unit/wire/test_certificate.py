"""The end of a certificate is read as the library reads it that has made it."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from motor_ft.wire.certificate import not_after
from motor_ft.wire.tls import TlsConfig
from tests.support.certificates import Authority


def pem(end: datetime, organisation: str = "fleet") -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 2**150)
    made = builder.not_valid_before(end - timedelta(1)).not_valid_after(end).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 9999])
def test_the_end_is_read_in_both_forms_of_a_time(year: int) -> None:
    end = datetime(year, 11, 30, 9, 5, 59, tzinfo=UTC)
    assert not_after(pem(end)) == end.timestamp()


def test_of_a_chain_it_is_the_first_one_whatever_stands_around_it() -> None:
    first, second = datetime(2030, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    assert not_after(f"subject=fleet\n{pem(first, 'x' * 60)}\n{pem(second)}") == first.timestamp()


def test_what_is_no_certificate_has_no_end() -> None:
    whole = pem(datetime(2030, 1, 1, tzinfo=UTC)).splitlines()
    for text in ("", "no certificate", "\n".join([whole[0], *whole[1:3], whole[-1]]), "\n".join([whole[0], whole[-1]])):
        with pytest.raises(ValueError, match=r"certificate|padding"):
            not_after(text)


def test_a_process_without_a_certificate_has_none_that_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.tls("own")
    assert not_after(Path(own.cert_file).read_text()) == own.not_after() < math.inf
    assert TlsConfig(ca_file=authority.ca_file).not_after() == math.inf
    Path(own.cert_file).unlink()
    assert math.isnan(own.not_after())
