"""Where the store may be: what cannot work is refused with the key and the reason."""

from pathlib import Path

import pytest

from controller.config import ControllerConfig
from motor_ft.wire.config import ConfigError, load


def read(folder: Path, etcd: str) -> ControllerConfig:
    path = folder / "controller.toml"
    path.write_text(f'[store]\nkind = "etcd"\n[store.etcd]\n{etcd}\n')
    return load(path, ControllerConfig)


@pytest.mark.parametrize(("scheme", "tls"), [("http", False), ("https", True)])
def test_the_scheme_of_the_endpoints_says_whether_connections_are_encrypted(
    tmp_path: Path, scheme: str, tls: bool
) -> None:
    etcd = read(tmp_path, f'endpoints = ["{scheme}://etcd-0:2379", "{scheme}://[::1]:2379"]').store.etcd
    assert etcd.tls is tls
    assert etcd.targets == ["etcd-0:2379", "[::1]:2379"]


@pytest.mark.parametrize(
    ("etcd", "what"),
    [
        ("", 'store.etcd.endpoints: are needed with kind = "etcd"'),
        ('endpoints = ["etcd-0:2379"]', "store.etcd.endpoints[0]: must be http://host:port or https://host:port, not"),
        (
            'endpoints = ["http://etcd-0"]',
            "store.etcd.endpoints[0]: must be http://host:port or https://host:port, not",
        ),
        ('endpoints = ["http://a:1", "https://b:1"]', "store.etcd.endpoints: must be all http:// or all https://"),
        ('endpoints = ["http://a:1"]\nca_file = "ca.pem"', "store.etcd.endpoints: must be https:// for ca_file"),
        ('endpoints = ["https://a:1"]\ncert_file = "c.pem"', "store.etcd.cert_file: needs key_file"),
        ('endpoints = ["http://a:1"]\nuser = "motor"', "store.etcd.user: needs password_file"),
        ('endpoints = ["http://a:1"]\nprefix = "/"', "store.etcd.prefix: must name something"),
        ('endpoints = ["http://a:1"]\nlease_ttl_sec = 1', "store.etcd.lease_ttl_sec: expected `int` >= 2"),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, etcd: str, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, etcd)
    assert what in str(refused.value)
