"""A store that any number of Controllers share, with a lease on leadership, failures, and answers that get lost."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TypeVar

from controller.core.ports import Loaded, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.memory import MemoryStore, Shelf
from motor_ft.model.errors import FtError, Reason
from tests.simulation.loop import Process, SimLoop, settle
from tests.simulation.network import Network

T = TypeVar("T")
OnWrite = Callable[[Process, str, int, object], None]

HOST = "store"
TIMEOUT_SEC = 5.0
"""How long a Controller waits for an answer of the store."""
USABLE = 0.9
"""Share of a lease that its owner relies on."""
RETRY_SEC = 1.0


class Vault:
    """What is stored, and who leads. ``on_write`` is told of every record as it becomes durable."""

    def __init__(self, loop: SimLoop, network: Network, lease_sec: float, on_write: OnWrite):
        self.loop = loop
        self.network = network
        self.lease_sec = lease_sec
        self.on_write = on_write
        self.shelf = Shelf()
        self.down = False
        self.leader: Process | None = None
        self.epoch_of: dict[str, int] = {}
        self.expires = 0.0
        self.asked: Counter[Process] = Counter()
        """How many answers somebody waits for."""

    def free(self, now: float) -> bool:
        """Nobody leads any more."""
        return self.leader is None or now >= self.expires


class SimStore:
    """``controller.core.ports.Store`` of one Controller process on a Vault; ``told`` as of ``EtcdClient``."""

    def __init__(
        self,
        vault: Vault,
        process: Process,
        now: Callable[[], float],
        told: Callable[[str], None],
        on_lost: Callable[[FtError], None],
    ):
        self._vault = vault
        self._process = process
        self._now = now
        self._told = told
        self._on_lost = on_lost
        self._inner = MemoryStore(vault.shelf)
        self._deadline: float | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._lost = False

    # --- leadership ---

    async def lead(self, above: int = 0) -> int:
        while self._renewal is None:
            sent = self._now()
            try:
                if await self._ask(self._acquire):
                    self._deadline = sent + USABLE * self._vault.lease_sec
                    self._renewal = asyncio.create_task(self._keep(), name="store/lease")
                    break
            except FtError:
                pass  # cannot stand for leadership: try again
            await asyncio.sleep(RETRY_SEC)

        def begin() -> int:
            self._check_leader()
            return _now(self._inner.lead(above))

        epoch = await self._ask(begin)
        self._told("")
        return epoch

    def leads(self) -> bool:
        return self._inner.leads() and not self._lost and self._deadline is not None and self._now() < self._deadline

    def leader(self) -> str:
        leader = self._vault.leader
        return f"{leader.host}:50051" if leader is not None else ""

    def _acquire(self) -> bool:
        vault = self._vault
        if not vault.free(vault.loop.time()):
            return False
        vault.leader, vault.expires = self._process, vault.loop.time() + vault.lease_sec
        return True

    def _renew(self) -> bool:
        if self._vault.leader is not self._process:
            return False
        self._vault.expires = self._vault.loop.time() + self._vault.lease_sec
        return True

    async def _keep(self) -> None:
        assert self._deadline is not None
        while self._now() < self._deadline:
            sent = self._now()
            try:
                async with asyncio.timeout(self._vault.lease_sec / 4):
                    if not await self._ask(self._renew):
                        break
                self._deadline = sent + USABLE * self._vault.lease_sec
            except (FtError, TimeoutError):
                self._told("its lease could not be renewed")
                await asyncio.sleep(0.2)
                continue
            await asyncio.sleep(self._vault.lease_sec / 3)
        self._lose("its lease was not renewed in time")

    def _lose(self, why: str) -> FtError:
        error = FtError(Reason.NOT_LEADER, f"this Controller leads no longer: {why}")
        if not self._lost:
            self._lost = True
            self._on_lost(error)
        return error

    def _check_leader(self) -> None:
        if self._vault.leader is not self._process or self._vault.free(self._vault.loop.time()):
            raise FtError(Reason.NOT_LEADER, "another Controller leads")

    # --- records ---

    async def next_instance_id(self) -> int:
        return await self._write("", 0, None, lambda: _now(self._inner.next_instance_id()))

    async def load(self) -> Loaded:
        return await self._ask(lambda: _now(self._inner.load()))

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        return await self._ask(lambda: _now(self._inner.runtime(instance_id)))

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        return await self._write(
            "runtime", instance_id, record, lambda: _now(self._inner.save_runtime(instance_id, record, expected))
        )

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        return await self._write(
            "identity", record.instance_id, record, lambda: _now(self._inner.save_identity(record, expected))
        )

    async def remove(self, instance_id: int) -> None:
        await self._write("remove", instance_id, None, lambda: _now(self._inner.remove(instance_id)))

    async def probe(self) -> None:
        await self._write("", 0, None, lambda: _now(self._inner.probe()))

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._inner.close()

        def resign() -> None:
            if self._vault.leader is self._process:
                self._vault.leader = None

        if self._process.alive:
            try:
                async with asyncio.timeout(1.0):
                    await self._ask(resign)
            except (FtError, TimeoutError):
                pass  # it expires by itself

    async def _write(self, kind: str, instance_id: int, record: object, write: Callable[[], T]) -> T:
        if self._lost or self._deadline is None or self._now() >= self._deadline:
            raise self._lose("its lease was not renewed in time")

        def guarded() -> T:
            self._check_leader()
            result = write()
            if kind:
                self._vault.on_write(self._process, kind, instance_id, record)
            return result

        try:
            answer = await self._ask(guarded)
            self._told("")
            return answer
        except FtError as error:
            if error.reason is Reason.NOT_LEADER:
                raise self._lose("another one has taken over") from error
            raise

    async def _ask(self, work: Callable[[], T]) -> T:
        """Over the network to the store and back; STORE_UNAVAILABLE when no answer came, whatever was done."""
        vault = self._vault
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if vault.down:
                return
            try:
                result: T | FtError = work()
            except FtError as error:
                result = error
            vault.network.send(HOST, self._process.host, lambda: settle(answer, result))

        vault.network.send(self._process.host, HOST, arrive)
        vault.asked[self._process] += 1
        try:
            async with asyncio.timeout(TIMEOUT_SEC):
                return await answer
        except TimeoutError:
            text = f"the store did not answer within {TIMEOUT_SEC:g} s"
            self._told(text)
            raise FtError(Reason.STORE_UNAVAILABLE, text) from None
        finally:
            vault.asked[self._process] -= 1


def _now(work: Coroutine[object, None, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the memory store does not wait")
