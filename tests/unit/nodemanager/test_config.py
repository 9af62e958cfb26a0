"""A configuration that cannot work is refused with the key path of the reason."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motor_ft.model.topology import Device, Endpoint, FtCapability
from motor_ft.wire.config import ConfigError, load
from nodemanager.config import NodeManagerConfig

GOOD: dict[str, Any] = {
    "job_name": "job",
    "model_name": "model",
    "node_name": "node",
    "pod_name": "pod",
    "pod_ip": "10.0.0.1",
    "listen": "0.0.0.0:50061",
    "controllers": ["controller:50051"],
    "state_dir": "/var/lib/motor-ft",
    "dp_size": 4,
    "engines": [{"rank": 0, "port": 8000, "devices": [{"device_id": "3"}]}, {"rank": 1, "port": 8001, "host": "h"}],
    "capability": {
        "dialect": "vllm_v1",
        "engine_ft": True,
        "scale_down_supported": True,
        "external_lb": True,
        "auto_recovery": False,
        "eplb": True,
        "num_redundant_experts": 8,
        "engine_recovery_timeout_sec": 120,
    },
}


def two(**same: Any) -> list[dict[str, Any]]:
    """Two that have this in common."""
    return [{"rank": rank, "port": 8000 + rank} | same for rank in (0, 1)]


def read(directory: Path, **change: Any) -> NodeManagerConfig:
    file = directory / "node.json"
    file.write_bytes(msgspec.json.encode(GOOD | change))
    return load(file, NodeManagerConfig)


def test_a_good_one_says_what_the_pod_is(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert [engine.endpoint(config.pod_ip) for engine in config.engines] == [
        Endpoint(0, "10.0.0.1", 8000, devices=(Device("3"),)),
        Endpoint(1, "h", 8001),
    ]
    assert config.capability
    assert config.capability.capability() == FtCapability("vllm_v1", True, True, True, False, True, 8, 120.0)


@pytest.mark.parametrize(
    ("change", "dialect"),
    [
        ({}, "auto"),
        ({"capability": None}, "vllm_no_ft"),
        ({"capability": GOOD["capability"] | {"engine_ft": False}}, "vllm_no_ft"),
        ({"capability": None, "gateway": {"dialect": "vllm_v1"}}, "vllm_v1"),
        ({"gateway": {"dialect": "vllm_no_ft"}}, "vllm_no_ft"),
    ],
)
def test_engines_that_are_not_said_to_have_fault_tolerance_are_not_asked_for_it(
    tmp_path: Path, change: dict[str, Any], dialect: str
) -> None:
    """Unless the dialect is named."""
    assert read(tmp_path, **change).dialect == dialect


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"colour": "red"}, "colour: unknown key"),
        ({"dp_size": "four"}, "dp_size: expected `int`"),
        ({"dp_size": 1}, "engines: ranks [0, 1] must be below dp_size 1"),
        ({"engines": [{"rank": 0, "port": 1}, {"rank": 0, "port": 2}]}, "engines: must name each rank once"),
        ({"engines": [{"rank": 0, "port": 1, "pid": 1, "command": ["x"]}]}, "pid: comes in place of command"),
        ({"engines": [{"rank": 0, "port": 70000}]}, "engines[0].port: expected `int` <= 65535"),
        ({"engines": []}, "engines"),
        ({"engines": two(port=8000)}, "engines[1].port: 10.0.0.1:8000 is where engines[0].port listens already"),
        ({"engines": two(port=50061)}, "engines[0].port: 10.0.0.1:50061 is where listen listens already"),
        ({"engines": two(pid=7)}, "engines[1].pid: 7 is engines[0].pid already"),
        (
            {"engines": two(devices=[{"device_id": "3"}])},
            "engines[1].devices[0].device_id: '3' is engines[0].devices[0].device_id already",
        ),
        (
            {"engines": [{"rank": 0, "port": 1, "devices": [{"device_id": "card 3"}]}]},
            "engines[0].devices[0].device_id: 'card 3' names no card: write its number on the node, 3 or Ascend910-3",
        ),
        ({"metrics_listen": "10.0.0.1:50061"}, "metrics_listen: 10.0.0.1:50061 is where listen listens already"),
        ({"listen": "127.0.0.1:50061"}, "listen: nobody reaches it at pod_ip, 10.0.0.1"),
        ({"rest_strict_fencing": True}, "rest_strict_fencing: has no effect without rest_listen"),
        ({"controllers": ["c:1", "c:1"]}, "controllers[1]: 'c:1' is controllers[0] already"),
        ({"worker_pattern": "Worker|"}, "worker_pattern: matches every process"),
        ({"gateway": {"caller_token_file": "t"}}, "gateway.caller_token_file: has no effect without address"),
        ({"gateway": {"address": "g:1", "token_file": "t"}}, "gateway.token_file: has no effect with address"),
        ({"gateway": {"address": "g:1", "dialect": "sglang"}}, "gateway.dialect: has no effect with address"),
        ({"tls": {"server_name": "motor-ft"}}, "tls.server_name: has no effect without ca_file"),
        (
            {"capability": GOOD["capability"] | {"dialect": "french"}},
            "capability.dialect: invalid enum value 'french', must be one of 'auto', 'sglang'",
        ),
        ({"listen": "nowhere"}, "listen: must be host:port, not 'nowhere'"),
        ({"pod_ip": "0.0.0.0"}, "pod_ip: 0.0.0.0 is everywhere: name the host at which others reach it"),
        ({"advertise": "[::]:50061"}, "advertise: [::] is everywhere"),
        ({"controllers": ["c:x"]}, "controllers[0]: must be host:port, not 'c:x'"),
        ({"controllers": ["c:1", "http://c:1"]}, "controllers[1]: must be host:port, not 'http://c:1'"),
        ({"controllers": []}, "controllers"),
        ({"listen": "a:" + 5000 * "1"}, "listen: must be host:port"),
        ({"tp_size": 2**31}, "tp_size: expected `int` <= 2147483647"),
        ({"engines": [{"rank": 0, "port": 1, "pid": 2**31}]}, "engines[0].pid: expected `int` <= 2147483647"),
        ({"worker_pattern": "a{99999999999}"}, "worker_pattern: is no regular expression"),
        ({"worker_pattern": 5000 * "("}, "worker_pattern: is no regular expression"),
        ({"worker_pattern": "("}, "worker_pattern: is no regular expression"),
        ({"store_port": {"first": 5, "last": 4}}, "store_port.last: 4 is below first, 5"),
        ({"store_port": {"base": 65535}}, "store_port.base: plus dp_size is no port"),
        ({"gateway": {"dialect": "french"}}, "gateway.dialect"),
        ({"gateway": {"dialect": "sglang"}}, "capability.dialect: is 'vllm_v1', but gateway.dialect is 'sglang'"),
        ({"capability": {"dialect": "vllm_v1"}}, "capability.engine_ft: is missing"),
        (
            {"capability": GOOD["capability"] | {"engine_recovery_timeout_sec": 1e300}},
            "capability.engine_recovery_timeout_sec: expected `float` <= 86400.0",
        ),
    ],
)
def test_a_bad_one_names_the_key(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        read(tmp_path, **change)


def test_of_sglang_one_server_answers_for_every_rank(tmp_path: Path) -> None:
    sglang = {"capability": None, "gateway": {"dialect": "sglang"}}
    read(tmp_path, engines=two(port=8000, pid=7), **sglang)
    with pytest.raises(ConfigError, match=r"engines\[0\]\.port: .* is where listen listens already"):
        read(tmp_path, engines=two(port=50061), **sglang)


def test_files_are_looked_at(tmp_path: Path) -> None:
    read(tmp_path).check_files()
    with pytest.raises(ConfigError, match=r"gateway\.token_file: cannot read .*/token: No such file"):
        read(tmp_path, gateway={"token_file": str(tmp_path / "token")}).check_files()
    with pytest.raises(ConfigError, match=r"tls\.ca_file: cannot read .*ca\.pem"):
        read(tmp_path, tls=dict.fromkeys(("ca_file", "cert_file", "key_file"), str(tmp_path / "ca.pem"))).check_files()
