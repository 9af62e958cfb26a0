"""The rounds in which the pod judges itself (core.suicide has the rule)."""

import asyncio
from collections.abc import Callable

from motor_ft.model.topology import EndpointStatus
from nodemanager.core.ports import Clock
from nodemanager.core.suicide import ROUND_SEC, FreezeSource, Suicide
from nodemanager.journal import Journal
from nodemanager.pod import Pod


class SuicideWatch:
    """Calls ``on_due`` once, when the pod shall end itself."""

    def __init__(self, pod: Pod, journal: Journal, clock: Clock, *, enabled: bool, on_due: Callable[[], None]) -> None:
        self._pod = pod
        self._journal = journal
        self._clock = clock
        self._on_due = on_due
        self._suicide = Suicide(enabled)
        self._collecting_until = 0.0
        self._relaunching_until = 0.0

    def freeze(self, seconds: float) -> None:
        """The Controller judges faults of this pod for so long; 0 thaws."""
        self._collecting_until = self._clock.now() + seconds

    def relaunching(self, seconds: float) -> None:
        """The engines start anew: until they are ready, for so long at most, the pod does not judge itself."""
        self._relaunching_until = self._clock.now() + seconds

    async def run(self) -> None:
        """Judge every round until it is due."""
        while not self._suicide.due:
            await asyncio.sleep(ROUND_SEC)
            self.judge()
        self._on_due()

    def judge(self) -> Suicide:
        """One round."""
        abnormal = any(known.status is EndpointStatus.ABNORMAL for known in self._pod.health())
        self._suicide = self._suicide.after(abnormal=abnormal, frozen=self._frozen())
        return self._suicide

    def _frozen(self) -> set[FreezeSource]:
        state, now = self._journal.state, self._clock.now()
        sources = {
            FreezeSource.GUARD: state.guard is not None and state.guard.live(self._clock.boot()),
            FreezeSource.COLLECTION: now < self._collecting_until,
            FreezeSource.RELAUNCH: now < self._relaunching_until and not state.ready,
        }
        return {source for source, held in sources.items() if held}
