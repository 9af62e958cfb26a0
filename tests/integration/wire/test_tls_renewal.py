"""Renewed TLS files are taken with a server's next handshake and a client's next channel, the old ones kept until then.

Those that cannot be used are not taken.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from motor_ft.model.errors import FtError
from motor_ft.v1 import node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.channel import Lasting, call, open_channel
from motor_ft.wire.tls import ClientTls, TlsConfig
from tests.integration.wire.support import TIMEOUT, Context, Served, guard, serving
from tests.support.certificates import Authority


class Mount:
    """A secret as Kubernetes mounts it: files behind a link to the directory of one version, which is swapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = 0
        folder.mkdir()
        names = {"ca_file": "ca.crt", "cert_file": "tls.crt", "key_file": "tls.key"}
        for name in names.values():
            (folder / name).symlink_to(f"..data/{name}")
        self.tls = TlsConfig(**{key: str(folder / name) for key, name in names.items()})  # type: ignore[arg-type]

    def swap(self, own: TlsConfig, *believed: TlsConfig) -> None:
        """Show the certificate of ``own``, believe the authorities of the others; what was there is removed."""
        old = (self._folder / "..data").resolve()
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        (version / "ca.crt").write_text("".join(Path(each.ca_file).read_text() for each in believed))
        shutil.copy(own.cert_file, version / "tls.crt")
        shutil.copy(own.key_file, version / "tls.key")
        (self._folder / "..next").symlink_to(version.name)
        (self._folder / "..next").rename(self._folder / "..data")
        if self._versions > 1:
            shutil.rmtree(old)


async def heard(served: Served, client: TlsConfig | ClientTls) -> bool:
    """Whether a call over a connection of its own is answered."""
    tls = client.client() if isinstance(client, TlsConfig) else client
    async with open_channel(served.address, tls=tls) as channel:
        return await answered(node_manager_pb2_grpc.NodeManagerServiceStub(channel))


async def answered(stub: "node_manager_pb2_grpc.NodeManagerServiceAsyncStub") -> bool:
    try:
        await call(stub.Guard, guard(), timeout=TIMEOUT)
    except FtError:
        return False
    return True


@pytest.fixture
def old(tmp_path: Path) -> TlsConfig:
    return Authority(tmp_path, "old").tls("old-leaf")


@pytest.fixture
def new(tmp_path: Path) -> TlsConfig:
    return Authority(tmp_path, "new").tls("new-leaf")


async def test_another_root_is_served_and_believed(tmp_path: Path, old: TlsConfig, new: TlsConfig) -> None:
    """Both are believed while both are in the bundle, then only the new one; the link of a mount is swapped."""
    mount = Mount(tmp_path / "mount")
    mount.swap(old, old)
    both = msgspec.structs.replace(new, ca_file=old.ca_file)  # of the new root, believes the old one
    async with serving(tls=mount.tls) as served:
        assert await heard(served, old)
        assert not await heard(served, both)
        mount.swap(old, old, new)
        assert await heard(served, old)
        assert await heard(served, both)
        mount.swap(new, new)
        assert await heard(served, new)
        assert not await heard(served, old)


async def test_half_of_a_pair_is_not_taken(tmp_path: Path, old: TlsConfig, new: TlsConfig) -> None:
    """The old pair is served meanwhile, which is said once, and the new one as soon as it is whole."""
    mount = Mount(tmp_path / "mount")
    mount.swap(old, old)
    async with serving(tls=mount.tls) as served:
        assert await heard(served, old)
        with capture_logs() as logs:
            mount.swap(msgspec.structs.replace(new, key_file=old.key_file), new)
            assert await heard(served, old)
            assert await heard(served, old)
        assert [mount.tls.cert_file in entry["problem"] for entry in logs if "problem" in entry] == [True]
        mount.swap(new, new)
        assert await heard(served, new)


async def test_a_stream_outlives_the_files_it_began_with(tmp_path: Path, old: TlsConfig, new: TlsConfig) -> None:
    mount = Mount(tmp_path / "mount")
    mount.swap(old, old)
    renewed = asyncio.Event()

    async def watch(_context: Context) -> AsyncIterator[None]:
        yield None
        await renewed.wait()
        yield None

    async with serving(tls=mount.tls) as served, open_channel(served.address, tls=old.client()) as channel:
        served.servicer.watch = watch
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        stream = stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=guard().header), timeout=60)
        answers = aiter(stream)
        await anext(answers)
        mount.swap(new, new)
        assert await heard(served, new)
        renewed.set()
        await anext(answers)


async def test_a_client_shows_and_believes_what_the_files_are_when_it_opens_a_channel(
    tmp_path: Path, old: TlsConfig, new: TlsConfig
) -> None:
    """Half of a pair is not taken there either."""
    mount = Mount(tmp_path / "mount")
    mount.swap(old, old)
    client = mount.tls.client()
    assert client is not None
    async with serving(tls=old) as before, serving(tls=new) as after:
        mount.swap(msgspec.structs.replace(new, key_file=old.key_file), new)
        assert await heard(before, client)
        assert not await heard(after, client)
        mount.swap(new, new)
        assert await heard(after, client)
        assert not await heard(before, client)


async def test_a_channel_that_lasts_takes_renewed_files_where_it_cannot_connect(
    tmp_path: Path, old: TlsConfig, new: TlsConfig
) -> None:
    mount = Mount(tmp_path / "mount")
    mount.swap(old, old)
    client = mount.tls.client()
    async with serving(tls=new) as served:
        lasting = Lasting(
            lambda: open_channel(served.address, tls=client), node_manager_pb2_grpc.NodeManagerServiceStub
        )
        assert not await answered(await lasting.stub())
        mount.swap(new, new)
        async with asyncio.timeout(60):
            while not await answered(await lasting.stub()):
                pass
        first = await lasting.stub()
        assert await lasting.stub() is first, "one that works is kept"
        await lasting.close()
