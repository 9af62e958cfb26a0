"""What was wrong once, back again: the rows of "What it has found" in docs/simulation.md.

All but one: no short scene is known in which a Controller that shows no progress is noticed.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nodemanager.supervisor
from controller.fault_manager import recovery
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.link import ReportLink
from nodemanager.core.state import EngineProcess, NodeState
from nodemanager.journal import Journal
from nodemanager.pod import Pod
from nodemanager.watcher import Watcher
from tests.simulation.mutants.mutant import DEATH, Mutant, Patch, at, scene
from tests.simulation.scenario import Scenario, load
from tests.simulation.stories.node_manager import STORIES


def stay_withdrawn_after_a_commit(patch: Patch) -> None:
    """Nobody is told that the last phase was written after all."""
    patch.setattr(recovery, "STABLE", frozenset())


def give_up_before_it_is_sent_again(patch: Patch) -> None:
    """What an earlier stream has left counts as unacknowledged by this one."""
    send = ReportLink._send  # noqa: SLF001

    async def impatient(self: Any, stream: Any) -> Any:
        if self._outbox.unacknowledged_for(self._now()) > self._pace.heartbeat_ttl_sec:
            await asyncio.sleep(self._pace.heartbeat_ttl_sec)
            raise FtError(Reason.OUTCOME_UNKNOWN, "no acknowledgement")
        return await send(self, stream)

    patch.setattr(ReportLink, "_send", impatient)


def end_on_a_full_disk(patch: Patch) -> None:
    """What cannot be written now is not tried again."""
    patch.setattr(Journal, "insist", Journal.update)


def stand_by_a_commit_for_new_engines(patch: Patch) -> None:
    """A NodeManager that was restarted, and its engines with it, still holds the guard that it held for the others."""

    def began(known: NodeState, engines: Mapping[int, EngineProcess], starts: int) -> NodeState:
        return replace(
            known, engines=engines, engine_starts=starts, ready=known.ready and starts == known.engine_starts
        )

    patch.setattr(nodemanager.supervisor, "began", began)


def send_to_whatever_answers_there(patch: Patch) -> None:
    """That the process of an engine has ended says nothing about its address."""
    known = Pod._known  # noqa: SLF001
    check_meant = Pod.check_meant

    def forgetful(self: Any, engines: Any) -> None:
        with Patch.context() as inner:
            inner.setattr(Pod, "_known", lambda pod, rank: replace(known(pod, rank), deaths=()))
            check_meant(self, engines)

    patch.setattr(Pod, "check_meant", forgetful)


def read_others_for_good(patch: Patch) -> None:
    """Whichever engine was declared last at the gateway is read."""
    watch = Watcher._watch  # noqa: SLF001

    class Same(str):
        """Of whichever engine."""

        __hash__ = str.__hash__

        def __ne__(self, _: object) -> bool:
            return False

    async def anybody(self: Any, targets: Any) -> None:
        await watch(self, tuple(replace(target, incarnation=Same(target.incarnation)) for target in targets))

    patch.setattr(Watcher, "_watch", anybody)


def _case(name: str) -> Scenario:
    return load(Path(__file__).parent.parent / "cases" / f"{name}.json")


MUTANTS = (
    Mutant(stay_withdrawn_after_a_commit, _case("published-before-its-last-phase"), "every incident ends"),
    Mutant(give_up_before_it_is_sent_again, _case("unacknowledged-beyond-the-ttl"), "every incident ends"),
    Mutant(end_on_a_full_disk, _case("not-ready-on-a-full-disk"), "no defect"),
    Mutant(
        stand_by_a_commit_for_new_engines,
        scene(DEATH, at("arrive Finalize", "node_kill", "0/0")),
        "commit after recovery",
    ),
    Mutant(
        send_to_whatever_answers_there,
        scene(DEATH, at("store SCALING_DOWN", "restart", "0/2")),
        "apply only to U",
    ),
    Mutant(read_others_for_good, STORIES["somebody else is at the gateway"].scenario, "every incident ends"),
)
