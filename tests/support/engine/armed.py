"""Injections that wait on a rank until the code path they disturb takes them."""

from __future__ import annotations


class Armed:
    """Injections by name with their parameters; `times` limits how often one is taken."""

    def __init__(self) -> None:
        self._params: dict[str, dict[str, object]] = {}

    def arm(self, name: str, params: dict[str, object]) -> None:
        self._params[name] = dict(params)

    def clear(self, name: str) -> None:
        self._params.pop(name, None)

    def take(self, name: str) -> dict[str, object] | None:
        """The parameters of an armed injection, or None; the last of its `times` disarms it."""
        params = self._params.get(name)
        if params is None or not isinstance(times := params.get("times"), int):
            return params
        if times <= 1:
            del self._params[name]
        params["times"] = times - 1
        return params

    def seconds(self, name: str, default: float = 0.0) -> float:
        """The `seconds` of an armed delay."""
        value = (self.take(name) or {}).get("seconds", default)
        return float(value) if isinstance(value, int | float) else default

    def names(self) -> list[str]:
        return sorted(self._params)
