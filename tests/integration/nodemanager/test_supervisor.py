"""Real processes: an exit is reported at once, and nothing outlives the NodeManager."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import psutil
import pytest

from motor_ft.wire.config import ConfigError
from nodemanager.clock import SystemClock
from nodemanager.core.health import DeathReport
from nodemanager.core.state import EngineProcess
from nodemanager.journal import Journal
from nodemanager.supervisor import EngineSpec, Supervisor
from tests.support.disk import full_disk

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
)
NAMELESS_SIGNAL = signal.SIGRTMIN + 1
WITH_WORKER = (
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "for title in ('VLLM::EngineCore_DP0', 'helper'):\n"
    "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', title])\n"
    "    print(child.pid, flush=True)\n"
    "time.sleep(600)",
)


@dataclass
class Bench:
    """Supervisors one after the other on one state directory."""

    directory: Path
    deaths: list[DeathReport] = field(default_factory=list)
    died: asyncio.Event = field(default_factory=asyncio.Event)
    ids: Iterator[int] = field(default_factory=count)
    journal: Journal | None = None
    supervisor: Supervisor | None = None

    async def start(self, *specs: EngineSpec, grace: float = 5.0) -> Supervisor:
        self.journal = Journal(self.directory)
        self.supervisor = Supervisor(
            specs,
            self.journal,
            SystemClock(),
            new_id=lambda: f"id{next(self.ids)}",
            on_death=self._died,
            log_dir=self.directory,
            pattern=re.compile("VLLM::(EngineCore|Worker)"),
            stop_grace_sec=grace,
        )
        await self.supervisor.start()
        return self.supervisor

    async def begin(self, spec: EngineSpec) -> str:
        """Start with one engine and return its identity."""
        await self.start(spec)
        return self.incarnation(spec.rank)

    def incarnation(self, rank: int = 0) -> str:
        assert self.journal is not None
        return self.journal.state.engines[rank].incarnation

    async def stop(self, *, adopted: bool = False) -> None:
        if self.supervisor and self.journal:
            await self.supervisor.stop(adopted=adopted)
            await self.journal.close()
        self.supervisor = self.journal = None

    async def death(self) -> DeathReport:
        await asyncio.wait_for(self.died.wait(), 30)
        self.died.clear()
        return self.deaths[-1]

    def log(self, rank: int = 0) -> str:
        return (self.directory / f"engine-rank{rank}.log").read_text()

    def pid(self, rank: int = 0) -> int:
        assert self.journal is not None
        return self.journal.state.engines[rank].pid

    def _died(self, death: DeathReport) -> None:
        self.deaths.append(death)
        self.died.set()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.stop(adopted=True)


@pytest.fixture
def foreign() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Processes that somebody else started; reaped by somebody else too."""
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(SLEEP))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that another process does and that nobody announces."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_exit_of_a_launched_engine_is_reported_with_how_it_ended(bench: Bench) -> None:
    await bench.start(EngineSpec(3, (sys.executable, "-c", "raise SystemExit(7)")))
    death = await bench.death()
    assert (death.rank, death.incarnation) == (3, bench.incarnation(3))
    assert "exited with status 7" in death.detail


async def test_a_killed_engine_is_reported_once(bench: Bench) -> None:
    await bench.start(EngineSpec(0, SLEEP))
    os.kill(bench.pid(), signal.SIGKILL)
    assert "SIGKILL" in (await bench.death()).detail
    await bench.stop()
    assert len(bench.deaths) == 1


async def test_a_signal_that_has_no_name_is_reported_too(bench: Bench) -> None:
    await bench.start(EngineSpec(0, (sys.executable, "-c", f"import os; os.kill(os.getpid(), {NAMELESS_SIGNAL})")))
    assert f"signal {NAMELESS_SIGNAL}" in (await bench.death()).detail


async def test_a_process_whose_name_is_no_text_hinders_nobody(bench: Bench) -> None:
    """The kernel cuts names after 15 bytes, also in the middle of a character."""
    rename = f"open('/proc/self/comm', 'wb').write({'vllm推理引擎'.encode()[:15]!r})"
    command = (WITH_WORKER[0], "-c", f"{rename}\n{WITH_WORKER[2]}")
    supervisor = await bench.start(EngineSpec(0, command))
    await until(lambda: len(bench.log().split()) == 2)
    core, _ = (int(pid) for pid in bench.log().split())
    await until(lambda: "time.sleep" in psutil.Process(core).cmdline()[2])
    await supervisor.watch_descendants()
    os.kill(core, signal.SIGKILL)
    assert (await bench.death()).pid == core
    await supervisor.restart()


async def test_a_full_disk_delays_a_relaunch_and_ends_nothing(bench: Bench) -> None:
    """New engines run already when their incarnations cannot be written down; nobody could order them again."""
    supervisor, before = await bench.start(EngineSpec(0, SLEEP)), bench.incarnation()
    assert bench.journal is not None
    with full_disk((bench.directory / "journal").stat().st_size):
        relaunch = asyncio.create_task(supervisor.restart())
        await until(lambda: bench.journal and bench.journal.problem)
        assert (relaunch.done(), bench.incarnation()) == (False, before)
    await relaunch
    assert bench.incarnation() != before
    assert psutil.pid_exists(bench.pid())
    assert bench.deaths == []


async def test_output_goes_to_a_log_file_of_the_rank(bench: Bench) -> None:
    await bench.start(
        EngineSpec(0, (sys.executable, "-c", "print('hello'); import sys; print('world', file=sys.stderr)"))
    )
    await bench.death()
    assert set(bench.log().split()) == {"hello", "world"}


async def test_a_worker_that_was_there_at_readiness_is_evidence_another_helper_is_not(bench: Bench) -> None:
    supervisor = await bench.start(EngineSpec(0, WITH_WORKER))
    await until(lambda: len(bench.log().split()) == 2)
    core, helper = (int(pid) for pid in bench.log().split())
    await until(lambda: all("time.sleep" in psutil.Process(pid).cmdline()[2] for pid in (core, helper)))
    await supervisor.watch_descendants()
    os.kill(helper, signal.SIGKILL)
    os.kill(core, signal.SIGKILL)
    death = await bench.death()
    assert (death.pid, "VLLM::EngineCore_DP0" in death.detail) == (core, True)
    assert [death.pid for death in bench.deaths] == [core]


async def test_a_removed_rank_is_ended_with_its_whole_group(bench: Bench) -> None:
    supervisor = await bench.start(EngineSpec(0, WITH_WORKER), EngineSpec(1, SLEEP))
    await until(lambda: len(bench.log().split()) == 2)
    children = [psutil.Process(int(pid)) for pid in bench.log().split()]
    await supervisor.kill(0)
    await until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))
    assert psutil.Process(bench.pid(1)).is_running()


async def test_what_the_engine_left_in_its_group_is_ended_too(bench: Bench) -> None:
    """Frontend gone, engine alive: the launched process has exited, a member of its group has not."""
    orphan = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    )
    supervisor = await bench.start(EngineSpec(0, (sys.executable, "-c", orphan)))
    await bench.death()
    left = psutil.Process(int(bench.log()))
    await supervisor.kill(0)
    await until(lambda: not left.is_running() or left.status() == "zombie")


async def test_stop_ends_a_deaf_engine_with_sigkill(bench: Bench) -> None:
    await bench.start(EngineSpec(0, STUBBORN), grace=0.05)
    await until(lambda: "deaf" in bench.log())
    process = psutil.Process(bench.pid())
    await bench.stop()
    assert not process.is_running()
    assert bench.deaths == [], "an engine that we end ourselves is no evidence"


async def test_an_engine_dies_with_its_node_manager_and_all_that_it_started(tmp_path: Path) -> None:
    manager = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nodemanager.process import Launched\n"
        "print(Launched(sys.argv[2:], Path(sys.argv[1]), lambda process: None).pid, flush=True)\n"
        "sys.stdin.read()"
    )
    log = tmp_path / "engine.log"
    command = [sys.executable, "-c", manager, str(log), *WITH_WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220
        assert parent.stdout
        launcher = psutil.Process(int(parent.stdout.readline()))
        await until(lambda: log.exists() and len(log.read_text().split()) == 2)
        family = [launcher, *launcher.children(recursive=True)]
        assert len(family) == 4
        parent.kill()
    await until(lambda: not any(process.is_running() and process.status() != "zombie" for process in family))


async def test_how_an_engine_ends_is_known_although_it_has_a_launcher(bench: Bench) -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    await bench.start(EngineSpec(0, (sys.executable, "-c", suicide)))
    assert "SIGABRT" in (await bench.death()).detail


async def test_an_engine_that_ends_on_sigterm_has_its_time_and_its_exit_status(bench: Bench) -> None:
    slow = (
        "import signal, sys, time\n"
        "def end(*_): time.sleep(0.3); print('cleaned up', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)"
    )
    await bench.start(EngineSpec(0, (sys.executable, "-c", slow)))
    await until(lambda: "up" in bench.log())
    await bench.stop()
    assert "cleaned up" in bench.log()


async def test_an_adopted_process_keeps_its_identity_across_a_restart(
    bench: Bench, foreign: Callable[[], subprocess.Popen[bytes]]
) -> None:
    spec = EngineSpec(0, pid=foreign().pid)
    incarnation = await bench.begin(spec)
    await bench.stop()
    assert await bench.begin(spec) == incarnation
    assert bench.deaths == []


async def test_an_adopted_process_that_went_meanwhile_is_reported_at_start(
    bench: Bench, foreign: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = foreign()
    spec = EngineSpec(0, pid=process.pid)
    incarnation = await bench.begin(spec)
    await bench.stop()
    process.kill()
    process.wait()
    await bench.start(spec)
    death = await bench.death()
    assert (death.incarnation, death.pid) == (incarnation, process.pid)


async def test_a_pid_that_another_process_has_got_is_the_end_of_the_engine(
    bench: Bench, foreign: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = foreign()
    incarnation = await bench.begin(EngineSpec(0, pid=process.pid))
    assert bench.journal is not None
    earlier = EngineProcess(incarnation, process.pid, 1)
    await bench.journal.update(lambda state: replace(state, engines={0: earlier}))
    await bench.stop()
    await bench.start(EngineSpec(0, pid=process.pid))
    assert (await bench.death()).incarnation == incarnation
    await bench.stop(adopted=True)
    assert process.poll() is None, "a foreign process is never ended"


async def test_a_start_that_fails_half_way_leaves_no_engine(bench: Bench) -> None:
    with pytest.raises(ConfigError):
        await bench.start(EngineSpec(0, SLEEP), EngineSpec(1, pid=2**22 - 1))
    await bench.stop()


async def test_a_new_pid_is_a_new_engine_and_reported_on_its_own(
    bench: Bench, foreign: Callable[[], subprocess.Popen[bytes]]
) -> None:
    first, second = foreign(), foreign()
    before = await bench.begin(EngineSpec(0, pid=first.pid))
    first.kill()
    assert (await bench.death()).pid == first.pid
    await bench.stop()
    after = await bench.begin(EngineSpec(0, pid=second.pid))
    second.kill()
    assert (await bench.death()).pid == second.pid
    assert before != after


async def test_an_adopted_process_outlives_a_shutdown_but_not_a_stop(
    bench: Bench, foreign: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = foreign()
    await bench.start(EngineSpec(0, pid=process.pid))
    await bench.stop()
    assert process.poll() is None
    await bench.start(EngineSpec(0, pid=process.pid))
    await bench.stop(adopted=True)
    assert process.wait(30) == -signal.SIGTERM


async def test_an_endpoint_without_a_process_keeps_its_identity(bench: Bench) -> None:
    supervisor = await bench.start(EngineSpec(0))
    incarnation = bench.incarnation()
    await supervisor.kill(0)
    await bench.stop()
    assert await bench.begin(EngineSpec(0)) == incarnation


async def test_an_endpoint_of_a_pod_that_was_stopped_is_another_one_afterwards(bench: Bench) -> None:
    """All of the pod has ended; else it would be taken for what is left of the instance that it was in."""
    await bench.start(EngineSpec(0))
    incarnation = bench.incarnation()
    assert bench.journal is not None
    await bench.journal.update(lambda state: replace(state, stopped=(1, 2), ready=False))
    await bench.stop()
    assert await bench.begin(EngineSpec(0)) != incarnation


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (EngineSpec(2, ("no-such-engine",)), "rank 2: there is no command 'no-such-engine'"),
        (EngineSpec(2, pid=2**22 - 1), "rank 2: pid 4194303 does not run"),
    ],
)
async def test_what_cannot_be_started_or_adopted_is_named(bench: Bench, spec: EngineSpec, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await bench.start(spec)


async def test_launching_again_makes_a_new_identity_and_the_pod_not_ready(bench: Bench) -> None:
    first = await bench.begin(EngineSpec(0, SLEEP))
    assert bench.journal is not None
    await bench.journal.update(lambda state: replace(state, ready=True))
    await bench.stop()
    second = await bench.begin(EngineSpec(0, SLEEP))
    assert first != second
    assert bench.journal is not None
    assert not bench.journal.state.ready
