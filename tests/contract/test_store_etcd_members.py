"""The store in etcd when members are killed, frozen, or want to know who asks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from controller.store.etcd.client import EtcdClient
from controller.store.etcd.errors import CompactedError, RefusedError
from controller.store.etcd.member import Login
from controller.store.etcd.requests import put
from controller.store.etcd.store import EtcdStore
from controller.store.etcd.tls import channel_credentials
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import ConfigError
from tests.support.etcd import Etcd, open_store

RUNTIME = RuntimeRecord(Phase.NORMAL, 1, (0, 1))
PREFIX = "/motor-ft"
KEY = b"/watched"


@pytest.fixture
def one() -> Iterator[Etcd]:
    """A member of the test's own, to be mistreated."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def three() -> Iterator[Etcd]:
    with Etcd(3) as etcd:
        yield etcd


@asynccontextmanager
async def leading(store: EtcdStore) -> AsyncIterator[EtcdStore]:
    try:
        await store.lead()
        yield store
    finally:
        await store.close()


async def written(store: EtcdStore, generation: int) -> None:
    """Write as a caller does: an outcome that is not known is read back, and only then written again."""
    record = RuntimeRecord(Phase.NORMAL, generation, (0, 1))
    while True:
        try:
            stored = await store.runtime(1)
            if stored is not None and stored.record == record:
                return
            await store.save_runtime(1, record, stored.revision if stored else 0)
        except FtError as error:
            # A conflict is our own earlier write without an answer, which has arrived after it was looked for.
            if error.reason not in {Reason.STORE_UNAVAILABLE, Reason.STORE_CONFLICT}:
                raise


class TestFailures:
    async def test_writes_go_on_when_one_of_three_is_killed(self, three: Etcd) -> None:
        """Whichever it is: the one that leads, then after its return the one that the client talks to."""
        async with leading(open_store(three, PREFIX)) as store:
            await written(store, 1)
            first = three.leader()
            first.kill()
            await written(store, 2)
            three.launch(first)
            three.wait_ready()
            three.nodes[0].kill()
            await written(store, 3)
            assert store.leads()
            assert await store.next_instance_id() == 1

    async def test_a_frozen_member_does_not_stop_the_others(self, three: Etcd) -> None:
        """It still accepts connections, and never answers."""
        async with leading(open_store(three, PREFIX, timeout_sec=1.5)) as store:
            await written(store, 1)
            three.nodes[0].freeze()
            await written(store, 2)
            assert store.leads()

    async def test_a_write_without_an_answer_is_unknown_and_not_repeated(self, one: Etcd) -> None:
        """What is read back afterwards is what the next write builds on."""
        async with leading(open_store(one, PREFIX, timeout_sec=0.5)) as store:
            one.nodes[0].freeze()
            with pytest.raises(FtError, match="no answer to a write") as failure:
                await store.save_runtime(1, RUNTIME, 0)
            assert failure.value.reason is Reason.STORE_UNAVAILABLE
            one.nodes[0].thaw()
            await written(store, 2)
            stored = await store.runtime(1)
            assert stored is not None
            assert stored.record.generation == 2

    async def test_it_is_told_why_etcd_does_not_answer_and_when_it_can_be_written_again(self, one: Etcd) -> None:
        """The first also by the renewal of a lease, while there is nothing to write; the second only by a write."""
        told = list[str]()
        client = EtcdClient(one.endpoints, timeout_sec=0.2, told=told.append)
        lease = await client.grant(60)
        one.nodes[0].kill()
        with pytest.raises(FtError):
            await client.keep_alive(lease.ID, timeout=0.2)
        with pytest.raises(FtError):
            await client.range(pb.RangeRequest(key=KEY))
        one.launch(one.nodes[0])
        one.wait_ready()
        while True:
            with suppress(FtError):
                await client.range(pb.RangeRequest(key=KEY))
                break
        while told[-1]:
            with suppress(FtError):
                await client.txn(pb.TxnRequest())
        assert "" not in told[1:-1]
        assert ("lease keepalive" in told[1], "read" in told[2]) == (True, True)
        await client.close()

    async def test_a_controller_waits_for_an_etcd_that_is_not_there_yet(self, one: Etcd) -> None:
        one.nodes[0].kill()
        store = open_store(one, PREFIX, timeout_sec=0.2)
        term = asyncio.create_task(store.lead())
        with pytest.raises(FtError, match=f"no answer to a read from {one.endpoints[0]} within"):
            await store.load()
        assert not term.done()
        one.launch(one.nodes[0])
        await term
        await store.close()


class TestWatch:
    async def test_no_event_is_lost_over_a_restart_of_the_member(self, one: Etcd) -> None:
        client = EtcdClient(one.endpoints)
        start = (await client.range(pb.RangeRequest(key=KEY))).header.revision + 1
        seen = []
        async with aclosing(client.watch(KEY, start)) as events:
            one.put(KEY.decode(), b"1")
            one.put("/other", b"the header's revision is ahead of the event's now")
            seen.append(await anext(events))
            one.put(KEY.decode(), b"2")
            one.put(KEY.decode(), b"3")
            one.nodes[0].kill()
            one.launch(one.nodes[0])
            one.wait_ready()
            one.put(KEY.decode(), b"4")
            seen += [await anext(events) for _ in range(3)]
        assert [event.kv.value for event in seen] == [b"1", b"2", b"3", b"4"]
        await client.close()

    async def test_a_watch_of_compacted_revisions_says_so(self, one: Etcd) -> None:
        """Going on from what is left would skip events."""
        client = EtcdClient(one.endpoints)
        for value in (b"1", b"2", b"3"):
            one.put(KEY.decode(), value)
        now = (await client.range(pb.RangeRequest(key=KEY))).header.revision
        one.ctl("compaction", str(now))
        async with aclosing(client.watch(KEY, now - 2)) as events:
            with pytest.raises(CompactedError):
                await anext(events)
        await client.close()


def change_password(etcd: Etcd, login: Login) -> None:
    """At etcd, which forgets the logins of the user, and in the file."""
    etcd.ctl("--user=root:top", "user", "passwd", login.user, "--interactive=false", stdin="changed\n")
    login.password_file.write_text("changed\n")


class TestLogin:
    @pytest.fixture
    def login(self, one: Etcd, tmp_path: Path) -> Login:
        """A user that may use the prefix of motor-ft, on an etcd that wants to know."""
        one.ctl("user", "add", "root:top")
        one.ctl("user", "grant-role", "root", "root")
        one.ctl("role", "add", "controllers")
        one.ctl("role", "grant-permission", "controllers", "--prefix=true", "readwrite", f"{PREFIX}/")
        one.ctl("user", "add", "motor:secret")
        one.ctl("user", "grant-role", "motor", "controllers")
        one.ctl("auth", "enable")
        file = tmp_path / "password"
        file.write_text("secret\n")
        return Login("motor", file)

    async def test_a_login_that_is_not_accepted_any_more_is_renewed(self, one: Etcd, login: Login) -> None:
        """With what the file says by then; writes are renewed too, since the first was not looked at."""
        async with leading(open_store(one, PREFIX, login=login)) as store:
            await store.save_runtime(1, RUNTIME, 0)
            change_password(one, login)
            await store.save_runtime(2, RUNTIME, 0)
            assert sorted((await store.load()).runtimes) == [1, 2]

    async def test_a_watch_renews_its_login_too(self, one: Etcd, login: Login) -> None:
        """Of one that is not accepted any more etcd says "permission denied"; only of a new one that is the truth."""
        client = EtcdClient(one.endpoints, login=login)
        key = f"{PREFIX}/watched".encode()
        start = (await client.range(pb.RangeRequest(key=key))).header.revision + 1
        await client.txn(pb.TxnRequest(success=[put(key, b"1")]))
        change_password(one, login)
        async with aclosing(client.watch(key, start)) as events:
            assert (await anext(events)).kv.value == b"1"
        async with aclosing(client.watch(b"/others", start)) as events:
            with pytest.raises(RefusedError, match="permission denied"):
                await anext(events)
        await client.close()

    async def test_what_etcd_refuses_ends_the_attempt_to_lead(self, one: Etcd, login: Login) -> None:
        """No waiting, for neither time nor another member helps: a prefix of others, a wrong password, none at all."""
        others = open_store(one, "/others", login=login)
        with pytest.raises(RefusedError, match="permission denied"):
            await others.lead()
        await others.close()
        login.password_file.write_text("guessed")
        store = open_store(one, PREFIX, login=login)
        with pytest.raises(RefusedError, match=f"at {one.endpoints[0]}: .*authentication failed"):
            await store.lead()
        login.password_file.unlink()
        with pytest.raises(RefusedError, match=f"no password of user motor in {login.password_file}"):
            await store.lead()
        await store.close()


class TestTls:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Files of an authority, of the member and of the Controller."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        for name in ("member", "controller"):
            cert = authority.issue_cert("127.0.0.1", "localhost")
            cert.private_key_pem.write_to_path(tmp_path / f"{name}.key")
            cert.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        return tmp_path

    @pytest.fixture
    def secured(self, folder: Path) -> Iterator[Etcd]:
        with Etcd(
            1,
            f"--cert-file={folder / 'member.pem'}",
            f"--key-file={folder / 'member.key'}",
            f"--trusted-ca-file={folder / 'ca.pem'}",
            "--client-cert-auth",
        ) as etcd:
            yield etcd

    async def test_both_sides_show_their_certificates(self, secured: Etcd, folder: Path) -> None:
        files = (str(folder / name) for name in ("ca.pem", "controller.pem", "controller.key"))
        async with leading(open_store(secured, PREFIX, credentials=channel_credentials(*files))) as store:
            await store.save_runtime(1, RUNTIME, 0)
            assert list((await store.load()).runtimes) == [1]

    @pytest.mark.parametrize("ca_only", [True, False])
    async def test_without_certificate_or_authority_nothing_is_read(
        self, secured: Etcd, folder: Path, ca_only: bool
    ) -> None:
        """The error says that it was the connection."""
        credentials = channel_credentials(str(folder / "ca.pem") if ca_only else "", "", "")
        store = open_store(secured, PREFIX, credentials=credentials, timeout_sec=0.5)
        with pytest.raises(FtError, match="no answer to a read") as failure:
            await store.load()
        assert failure.value.reason is Reason.STORE_UNAVAILABLE
        await store.close()

    def test_a_file_that_cannot_be_read_is_named(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"store.etcd.ca_file: cannot read .*/nothing.pem: No such file"):
            channel_credentials(str(folder / "nothing.pem"), "", "")
