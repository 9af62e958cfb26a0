"""The cached entry that `GET status` returns: another thing than the engine's state (section 2.1)."""

from __future__ import annotations


class Entry:
    """One rank's entry. An engine push replaces it whole; the client layer patches single fields."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fields: dict[str, object] = {"id": rank, "status": "healthy"}

    def push(self, status: str, **details: object) -> None:
        """Replace the entry, wiping every earlier patch; details that are None are left out."""
        self._fields = {"id": self._rank, "status": status} | _present(details)

    def patch(self, **changes: object) -> None:
        """Edit single fields; None removes one."""
        self._fields = _present(self._fields | changes)

    @property
    def ft_state(self) -> object:
        return self._fields.get("ft_state")

    def view(self) -> dict[str, object]:
        return dict(self._fields)


def _present(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
