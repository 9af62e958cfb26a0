"""Who may call the methods that the policy table marks ``authenticated``."""

import hmac
from collections.abc import Mapping
from typing import Protocol

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import check
from motor_ft.wire.tls import read_file


class Authorizer(Protocol):
    """Decides by what a call brings with it."""

    async def authorize(self, method: str, metadata: Mapping[str, str | bytes], peer: str) -> None:
        """Return for a caller that may; raises FtError UNAUTHENTICATED or PERMISSION_DENIED for others."""


def read_token(key: str, name: str) -> str:
    """Return the token in a file, without surrounding white space, and an empty one without a name.

    Raises ConfigError for ``key``, which has named the file, when there is no token in it.
    """
    token = (read_file(key, name) or b"").decode(errors="replace").strip()
    usable = token.isascii() and token.isprintable() and bool(token)
    check(usable or not name, key, f"{name} must hold a token, one line of printable ASCII")
    return token


class SharedToken:
    """Knows one token, sent as ``authorization: Bearer …``."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def authorize(self, method: str, metadata: Mapping[str, str | bytes], peer: str) -> None:
        """Compare in constant time; neither text nor logs ever hold a token."""
        sent = metadata.get("authorization", "")
        if not hmac.compare_digest(sent.encode() if isinstance(sent, str) else sent, self._expected):
            what = "the wrong token" if sent else "no token"
            raise FtError(Reason.UNAUTHENTICATED, f"{peer} sent {what} to {method}; give it the server's token file")
