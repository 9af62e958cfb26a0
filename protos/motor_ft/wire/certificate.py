"""When a certificate ends: the one thing in it that we read ourselves, for metrics. Everything else is left to gRPC."""

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, each in the one form that RFC 5280 allows."""


def not_after(pem: str) -> float:
    """End of the first certificate, seconds since the epoch; raises ValueError for what has none."""
    if (found := _PEM.search(pem)) is None:
        raise ValueError("no certificate")
    try:
        _, certificate = _elements(ssl.PEM_cert_to_DER_cert(found[0]))[0]
        fields = _elements(_elements(certificate)[0][1])
        # Version (absent in the first one), serial number, signature, issuer, validity: RFC 5280 section 4.1.
        _, validity = fields[4 if fields[0][0] == _VERSION else 3]
        kind, text = _elements(validity)[1]
        return datetime.strptime(text.decode(), _TIMES[kind]).replace(tzinfo=UTC).timestamp()
    except LookupError as error:
        raise ValueError("cut off, or not a certificate") from error


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of what follows one another in DER."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # so many bytes of length follow
            begin = at + (length & 0x7F)
            length, at = int.from_bytes(der[at:begin]), begin
        found.append((tag, der[at : at + length]))
        at += length
    return found
