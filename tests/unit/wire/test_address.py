"""Whatever is no address is refused when the configuration is read, with its key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor_ft.wire.address import check_host, check_listen, check_peer, check_url, split_address
from motor_ft.wire.config import ConfigError

NO_ADDRESSES = [
    *("", "host", ":80", "host:", "host:x", "host:65536", "host:-1", "host: 1", "host:1/", "http://host:1"),
    *(
        "a b:1",
        "[:1",
        "]:1",
        "[::1:1",
        "::1:1",
        "[x]:1",
        "[]:1",
        "user@host:1",
        "host?:1",
        "h\u00f6st:1",
        "host:\u0661",
    ),
]
NO_URLS = [
    *("", "http://", "http://[", "http://[::1", "http:/host:1", "//host:1", "host:1", "ftp://host:1"),
    *("http://host:0", "http://host:65536", "http://host:x", "http://a b:1", "http://user:secret@host:1"),
    *("http://host:1?x=1", "http://host:1#x", "http://ho\nst:1", " http://host:1"),
]


@pytest.mark.parametrize("address", ["host:1", "10.0.0.1:65535", "[::1]:80", "my-host.name:0", "a_b:7"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    check_listen("key", address)
    host, port = split_address(address)
    assert address in {f"{host}:{port}", f"[{host}]:{port}"}


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_is_none_is_refused_by_its_key(address: str) -> None:
    for check in (check_listen, check_peer):
        with pytest.raises(ConfigError, match=r"^key: must be host:port, not "):
            check("key", address)


def test_only_who_listens_may_leave_the_port_open() -> None:
    with pytest.raises(ConfigError, match="key: must have a port above 0, not 'host:0'"):
        check_peer("key", "host:0")


def test_a_socket_is_an_address_where_it_is_allowed() -> None:
    check_peer("key", "unix:/run/s", unix=True)
    for address in ("unix:s", "unix:"):
        with pytest.raises(ConfigError, match="must be host:port or unix:/path"):
            check_listen("key", address, unix=True)
    with pytest.raises(ConfigError, match="must be host:port, not"):
        check_listen("key", "unix:/run/s")


@pytest.mark.parametrize("url", NO_URLS)
@pytest.mark.parametrize("path", [True, False])
def test_what_is_no_url_is_refused_by_its_key(url: str, path: bool) -> None:
    with pytest.raises(ConfigError, match=r"^key: must be http://host:port or https://host:port, not "):
        check_url("key", url, "http", "https", path=path)


def test_a_url_has_a_path_and_a_default_port_only_where_that_is_allowed() -> None:
    check_url("key", "https://[::1]:1", "https")
    for url in ("http://host", "http://host/a/b", "http://host:1/"):
        check_url("key", url, "http", path=True)
        with pytest.raises(ConfigError):
            check_url("key", url, "http")


@pytest.mark.parametrize("host", ["", "a:1", "::1", "[::1", "a b", "http://a"])
def test_what_is_no_host_is_refused_by_its_key(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^key: "):
        check_host("key", host)


@given(st.text(max_size=20), st.sampled_from(["", "http://", "http://host", "grpc://h:"]))
def test_whatever_is_written_there_is_taken_or_refused(text: str, before: str) -> None:
    """Never with another error, which would have no key."""
    for check in (
        check_listen,
        check_peer,
        check_host,
        lambda key, url: check_url(key, url, "http", "grpc", path=True),
    ):
        try:
            check("key", before + text)
        except ConfigError as error:
            assert str(error).startswith("key: ")  # noqa: PT017 - both ends are right
