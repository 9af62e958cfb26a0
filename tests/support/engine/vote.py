"""The MIN vote of one recovery round, dialect (b) (engine-contract.md section 2.3, step 6)."""

from __future__ import annotations

from collections.abc import Iterable


class Vote:
    """A collective of live participants; unlike rendezvous keys it does not outlive its round."""

    def __init__(self) -> None:
        self._ballots: dict[int, tuple[frozenset[int], bool]] = {}
        self.outcome: bool | None = None

    def cast(self, rank: int, alive: frozenset[int], ok: bool) -> None:
        """One rank's result; `alive` is the set of survivors it believes in."""
        self._ballots[rank] = (alive, ok)

    def settle(self, alive: frozenset[int], lost: Iterable[int]) -> None:
        """Decide once everybody of `alive` has voted; a lost participant decides for failure.

        Engines that were given different removed sets disagree on `alive`: failure on all.
        """
        if self.outcome is None and alive <= self._ballots.keys():
            self.outcome = all(ok and believed == alive for believed, ok in self._ballots.values())
        if self.outcome is None and not alive.isdisjoint(lost):
            self.outcome = False
