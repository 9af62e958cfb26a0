"""Configuration files of every daemon: usable, or refused with the key that is wrong; never a traceback."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.config import ControllerConfig
from controller.convert import welcome_to_pb
from gateway.config import EngineDaemonConfig, MindClusterDaemonConfig, RestDaemonConfig
from motor_ft.model.topology import Registration
from motor_ft.wire.config import ConfigError, load
from motor_ft.wire.convert import registration_to_pb
from nodemanager.config import NodeManagerConfig
from tests.fuzz.generators import attempt, damaged, fuzz, spoilt

DOCS = Path(__file__).parents[2] / "docs"
SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "controller": ControllerConfig,
    "nodemanager": NodeManagerConfig,
    "gateway-rest": RestDaemonConfig,
    "gateway-engine": EngineDaemonConfig,
    "mindcluster": MindClusterDaemonConfig,
}


def example(name: str) -> bytes:
    return (DOCS / f"{name}.example.toml").read_bytes()


@pytest.mark.parametrize("name", SCHEMAS)
@given(data=st.data())
@fuzz(2)
def test_a_table_with_anything_in_it_is_good_or_refused_by_its_key(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    table = data.draw(damaged(tomllib.loads(example(name).decode())))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(table))
    config = attempt(lambda: load(path, SCHEMAS[name]), ConfigError)
    if isinstance(config, ConfigError):
        keys = {*table, *SCHEMAS[name].__struct_fields__} - {""} | {"''"}
        assert str(config).startswith(tuple(f"{path}: {key}" for key in keys)), config
    else:
        use(config)


def use(config: msgspec.Struct) -> None:
    """What is accepted can be told to others."""
    if isinstance(config, ControllerConfig):
        welcome_to_pb(config.fault_tolerance_config.settings.welcome(1))
    if isinstance(config, NodeManagerConfig):
        capability = config.capability.capability() if config.capability else None
        endpoints = tuple(engine.endpoint(config.pod_ip) for engine in config.engines)
        names = (config.job_name, config.model_name, config.engine_type, config.role, config.node_name)
        pod = ("uid", *names, config.pod_name, config.pod_ip, config.listen, config.dp_size, config.tp_size)
        registration_to_pb(Registration(*pod, endpoints=endpoints, capability=capability))


@pytest.mark.parametrize("name", SCHEMAS)
@given(data=st.data())
@fuzz(1)
def test_text_that_is_damaged_is_refused_by_its_file(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(data.draw(spoilt(example(name))))
    config = attempt(lambda: load(path, SCHEMAS[name]), ConfigError)
    assert not isinstance(config, ConfigError) or str(config).startswith(f"{path}: ")
