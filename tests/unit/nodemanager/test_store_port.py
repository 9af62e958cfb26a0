"""The reservation of the store's port: as long as the lease, and no longer."""

import asyncio

import pytest

from nodemanager.store_port import StorePort
from tests.support.ports import bindable, free_port


@pytest.mark.looptime
async def test_a_port_is_held_from_its_last_renewal_on_and_then_let_go() -> None:
    first = free_port()
    reservation = StorePort(first, first)
    port = reservation.reserve()
    reservation.keep(60)
    await asyncio.sleep(59)
    reservation.keep(60)
    await asyncio.sleep(59)
    assert not bindable("127.0.0.1", port)
    await asyncio.sleep(2)
    assert bindable("127.0.0.1", port)


@pytest.mark.looptime
async def test_the_end_of_an_earlier_lease_does_not_end_the_next_reservation() -> None:
    first = free_port()
    reservation = StorePort(first, first)
    reservation.reserve()
    reservation.keep(60)
    reservation.release()
    port = reservation.reserve()
    await asyncio.sleep(61)
    assert not bindable("127.0.0.1", port)
    reservation.release()
