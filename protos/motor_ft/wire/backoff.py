"""Growing pauses between attempts."""

from collections.abc import Callable


class Backoff:
    """Pauses in seconds from ``initial`` by ``factor`` up to ``maximum``.

    Each is shortened by up to half, by chance, so that peers that failed together do not come back together;
    ``rng`` returns numbers in [0, 1).
    """

    def __init__(self, initial: float, maximum: float, factor: float, rng: Callable[[], float]) -> None:
        self._initial = self._pause = initial
        self._maximum = maximum
        self._factor = factor
        self._rng = rng

    def next(self) -> float:
        """Return the next pause."""
        pause = self._pause
        self._pause = min(pause * self._factor, self._maximum)
        return pause * (1 - self._rng() / 2)

    def reset(self) -> None:
        """Start again: an attempt has succeeded."""
        self._pause = self._initial
