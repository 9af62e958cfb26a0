"""Certificates of a fleet, made for one test."""

from pathlib import Path

import trustme

from motor_ft.wire.tls import TlsConfig


class Authority:
    """Signs certificates and writes them into ``folder``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.ca_file = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.ca_file)

    def files(self, name: str, *identities: str) -> dict[str, str]:
        """The section of a process whose certificate names these, the address of this machine unless said otherwise."""
        certificate = self._authority.issue_cert(*(identities or ("127.0.0.1",)))
        cert, key = (str(self._folder / f"{name}.{kind}") for kind in ("pem", "key"))
        for part in certificate.cert_chain_pems:
            part.write_to_path(cert, append=True)
        certificate.private_key_pem.write_to_path(key)
        return {"ca_file": self.ca_file, "cert_file": cert, "key_file": key}

    def tls(self, name: str, *identities: str) -> TlsConfig:
        """The same, read."""
        files = self.files(name, *identities)
        return TlsConfig(ca_file=files["ca_file"], cert_file=files["cert_file"], key_file=files["key_file"])
