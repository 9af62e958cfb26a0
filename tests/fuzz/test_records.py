"""Stored records and the journal: what is damaged is reported, and whatever is read is whole; the others load."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.assembly import identity
from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from controller.store.codec import Kind, Row, encode, gather
from controller.store.memory import MemoryStore, Shelf
from motor_ft.model.errors import FtError, Reason
from nodemanager.core.state import started, welcomed
from nodemanager.journal import Journal
from tests.fuzz.conftest import NothingCrashed
from tests.fuzz.generators import attempt, damaged, encoded, fuzz, spoilt
from tests.support.world.pods import registration
from tests.support.world.world import SETTINGS, World

PODS = {
    instance: tuple(registration(pod, [rank], job=f"job-{instance}", dp_size=2) for rank, pod in enumerate(pods))
    for instance, pods in {1: (1, 2), 2: (3, 4)}.items()
}
WHOLE = [
    Row(kind, instance, 1, body)
    for instance, pods in PODS.items()
    for kind, body in (
        (Kind.RUNTIME, encode(RuntimeRecord(Phase.NORMAL, 3, (0, 1)))),
        (Kind.IDENTITY, encode(identity(instance, pods))),
    )
]
"""Two instances, which only have to become ready."""


def second(kind: Kind) -> bytes:
    """What is stored of instance 2."""
    return next(row.body for row in WHOLE if (row.kind, row.instance_id) == (kind, 2))


@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
@fuzz(5)
def test_a_damaged_record_is_reported_and_its_neighbours_load(kind: Kind, data: st.DataObject) -> None:
    """What is read although something was changed in it is a record that can be stored and read again."""
    good = second(kind)
    body = data.draw(spoilt(good) | damaged(json.loads(good)).map(encoded), label="body")
    loaded = gather([Row(kind, 2, 1, body), *(row for row in WHOLE if row.instance_id == 1)])
    assert 1 in loaded.identities.keys() & loaded.runtimes.keys()
    read = (loaded.identities if kind is Kind.IDENTITY else loaded.runtimes).get(2)
    assert (read is None) is (2 in loaded.unreadable)
    if read is not None:
        assert gather([Row(kind, 2, 1, encode(read.record))]).unreadable == {}


@pytest.mark.looptime
@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
@fuzz(1)
async def test_a_controller_starts_on_whatever_is_stored_and_goes_on_with_what_is_whole(
    nothing_crashed: NothingCrashed, kind: Kind, data: st.DataObject
) -> None:
    """A record of instance 2 is damaged: instance 1 serves, instance 2 is decided on or left alone."""
    body = data.draw(damaged(json.loads(second(kind))).map(encoded), label="body")
    rows = {(row.kind, row.instance_id): row for row in [*WHOLE, Row(kind, 2, 1, body)]}
    store = MemoryStore(Shelf(epoch=1, instance_id=2, rows=rows))
    async with World(*PODS[1], *PODS[2], store=store) as world:
        for instance, pods in PODS.items():
            for pod in (world.at(each.node_manager_address) for each in pods):
                pod.state = welcomed(pod.state, instance, 1, 3, scale_down_on=True)
        for pod in world.pods.values():
            with suppress(FtError):  # where it is not known what it belongs to, it has to start anew
                await pod.connect()
        await world.until(world.can_serve)
        await asyncio.sleep(2 * SETTINGS.heartbeat_ttl)
        assert world.can_serve()
    nothing_crashed()


@given(data=st.data())
@fuzz(1)
async def test_a_journal_that_is_damaged_is_left_alone_and_said_to_be(tmp_path: Path, data: st.DataObject) -> None:
    """It is never read as something else; a last line that is not whole was never acknowledged."""
    directory = Path(mkdtemp(dir=tmp_path))
    journal = Journal(directory)
    for _ in range(3):
        await journal.update(started)
    await journal.close()
    file = directory / "journal"
    bad = data.draw(spoilt(file.read_bytes()), label="journal")
    file.write_bytes(bad)
    opened = attempt(lambda: Journal(directory), FtError)
    if isinstance(opened, FtError):
        assert opened.reason is Reason.STORE_UNAVAILABLE
        assert file.read_bytes() == bad
    else:
        assert opened.state.starts in {0, 1, 2, 3}
        await opened.close()
