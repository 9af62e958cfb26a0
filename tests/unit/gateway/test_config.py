"""Configuration: what is wrong is named by file and key."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import (
    EngineAddress,
    EngineDaemonConfig,
    EngineGatewayConfig,
    MindClusterDaemonConfig,
    RestDaemonConfig,
)
from motor_ft.wire.config import ConfigError, load

ENGINE = """
listen = "unix:/run/motor-ft/engine.sock"
metrics_listen = "127.0.0.1:9100"

[engine]
dialect = "vllm_v1"
token_file = "/etc/motor-ft/engine-token"
request_timeout_sec = 4.0
engines = [{ rank = 0, url = "http://127.0.0.1:8000" }, { rank = 1, url = "http://[::1]:8001" }]
"""
WHOLE: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "metrics_listen": "127.0.0.1:0",
    "engine": {"engines": [{"rank": 0, "url": "http://127.0.0.1:8000"}]},
}
REST: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "controllers": ["127.0.0.1:7000"]}


MINDCLUSTER: dict[str, Any] = {
    "metrics_listen": "127.0.0.1:0",
    "controllers": ["127.0.0.1:7000"],
    "state_dir": "state",
    "kubernetes": {},
}


def error_of(
    tmp_path: Path, content: object, schema: type[EngineDaemonConfig | RestDaemonConfig | MindClusterDaemonConfig]
) -> str:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        load(path, schema)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_whole_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(ENGINE)
    config = load(path, EngineDaemonConfig)
    assert config.engine.engines == (
        EngineAddress(0, "http://127.0.0.1:8000"),
        EngineAddress(1, "http://[::1]:8001"),
    )


def test_defaults_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(WHOLE))
    engine = load(path, EngineDaemonConfig).engine
    assert (engine.dialect, engine.token_file, engine.request_timeout_sec) == ("auto", "", 4.0)


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"engines": []}, "engine.engines"),
        ({}, "engine.engines"),
        ({"engines": [{"rank": -1, "url": "http://h:1"}]}, "engine.engines[0].rank"),
        ({"engines": [{"rank": 0, "url": "h:1"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "ftp://h:1"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "http://"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "http://h:99999"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "http://h:1/v1"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "http://user:secret@h:1"}]}, "engine.engines[0].url"),
        ({"engines": [{"rank": 0, "url": "http://h:1", "port": 1}]}, "engine.engines[0].port"),
        ({"engines": [{"rank": 0, "url": "http://h:1"}] * 2}, "engines"),
        ({"engines": [{"rank": 0, "url": "http://h:1"}, {"rank": 1, "url": "http://h:1/"}]}, "engines[1].url: "),
        (WHOLE["engine"] | {"dialect": "french"}, "engine.dialect"),
        (WHOLE["engine"] | {"request_timeout_sec": 0}, "engine.request_timeout_sec"),
        (WHOLE["engine"] | {"retries": 3}, "engine.retries"),
    ],
)
def test_a_bad_engine_is_named_by_its_key(tmp_path: Path, engine: dict[str, object], key: str) -> None:
    assert key in error_of(tmp_path, WHOLE | {"engine": engine}, EngineDaemonConfig)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"listen": "8080"}, "listen"),
        ({"metrics_listen": "h"}, "metrics_listen"),
        ({"log_level": "loud"}, "log_level"),
        ({"more": 1}, "more"),
        ({"listen": "h:1", "metrics_listen": "0.0.0.0:1"}, "metrics_listen: 0.0.0.0:1 is where listen listens already"),
    ],
)
def test_a_bad_address_is_named_by_its_key(tmp_path: Path, change: dict[str, object], key: str) -> None:
    assert key in error_of(tmp_path, WHOLE | change, EngineDaemonConfig)
    assert key in error_of(tmp_path, REST | change, RestDaemonConfig)


def test_a_bad_controller_is_named_by_its_key(tmp_path: Path) -> None:
    change = {"controllers": ["127.0.0.1:7000", "somewhere"]}
    assert "controllers[1]" in error_of(tmp_path, REST | change, RestDaemonConfig)


def test_an_address_needs_no_trailing_slash_and_bears_one(tmp_path: Path) -> None:
    assert EngineAddress(0, "http://h:1/").url == "http://h:1/"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"metrics_listen": "h"}, "metrics_listen"),
        ({"controllers": []}, "controllers"),
        ({"controllers": ["127.0.0.1:7000", "somewhere"]}, "controllers[1]"),
        ({"kubernetes": None}, "kubernetes"),
        ({"kubernetes": {"configmaps": [], "nodes": False}}, "kubernetes.configmaps"),
        ({"kubernetes": {"configmaps": ["pods"]}}, "kubernetes.configmaps[0]"),
        ({"kubernetes": {"configmaps": ["node", "node"]}}, "kubernetes.configmaps[1]: "),
        ({"kubernetes": {"conditions": 2 * [{"type": "X", "level": "L5"}]}}, "kubernetes.conditions[1]: 'X=True' is"),
        ({"kubernetes": {"conditions": [{"type": "X", "level": "L5", "bad_status": ""}]}}, "conditions[0].bad_status"),
        ({"kubernetes": {"nodes": False, "node_selector": "a=b"}}, "kubernetes.node_selector: has no effect"),
        ({"controllers": ["h:1", "h:1"]}, "controllers[1]: 'h:1' is controllers[0] already"),
        ({"kubernetes": {"server": "http://h", "kubeconfig": "k"}}, "kubernetes.kubeconfig"),
        ({"kubernetes": {"conditions": [{"type": "NT_NPU_DEVICE", "level": "L7"}]}}, "kubernetes.conditions[0].level"),
        ({"clusterd": {"address": "h"}}, "clusterd.address"),
        ({"clusterd": {"address": "h:1", "role": ""}}, "clusterd.role"),
        ({"clusterd": {"address": "h:1", "cert_file": "c"}}, "clusterd.key_file"),
        ({"clusterd": {"address": "h:1", "cert_file": "c", "key_file": "k"}}, "clusterd.ca_file"),
        ({"clusterd": {"address": "h:1", "query_interval_sec": 0.5}}, "clusterd.query_interval_sec"),
        ({"debounce_sec": -1}, "debounce_sec"),
    ],
)
def test_a_bad_adapter_of_hardware_is_named_by_its_key(tmp_path: Path, change: dict[str, object], key: str) -> None:
    assert key in error_of(tmp_path, MINDCLUSTER | change, MindClusterDaemonConfig)


def test_of_sglang_one_server_answers_for_every_rank(tmp_path: Path) -> None:
    engines = tuple(EngineAddress(rank, "http://h:1") for rank in (0, 1))
    assert EngineGatewayConfig(engines=engines, dialect="sglang").engines == engines


def test_files_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    missing = str(tmp_path / "missing")
    for schema, content, change in (
        (EngineDaemonConfig, WHOLE, {"caller_token_file": missing}),
        (EngineDaemonConfig, WHOLE, {"engine": WHOLE["engine"] | {"token_file": missing}}),
        (RestDaemonConfig, REST, {"tls": {"ca_file": missing}}),
        (MindClusterDaemonConfig, MINDCLUSTER, {"kubernetes": {"kubeconfig": missing}}),
        (MindClusterDaemonConfig, MINDCLUSTER, {"clusterd": {"address": "h:1", "ca_file": missing}}),
    ):
        path.write_text(json.dumps(content))
        load(path, schema).check_files()
        path.write_text(json.dumps(content | change))
        with pytest.raises(ConfigError, match=f"{missing}.*No such file"):
            load(path, schema).check_files()
