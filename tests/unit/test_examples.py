"""The example configurations are what they say: complete, and accepted."""

from pathlib import Path

import msgspec
import pytest

from controller.config import ControllerConfig, FaultToleranceConfig
from gateway.config import (
    ClusterDConfig,
    EngineDaemonConfig,
    KubernetesConfig,
    MindClusterDaemonConfig,
    RestDaemonConfig,
)
from motor_ft.wire.config import load
from nodemanager.config import NodeManagerConfig

DOCS = Path(__file__).parents[2] / "docs"
WHOLE: dict[type[msgspec.Struct], type[msgspec.Struct]] = {
    KubernetesConfig: MindClusterDaemonConfig,
    ClusterDConfig: MindClusterDaemonConfig,
}
"""The file that a part is in."""


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("controller.example.toml", ControllerConfig),
        ("nodemanager.example.toml", NodeManagerConfig),
        ("mindcluster.example.toml", MindClusterDaemonConfig),
        ("mindcluster.example.toml", KubernetesConfig),
        ("mindcluster.example.toml", ClusterDConfig),
        ("gateway-rest.example.toml", RestDaemonConfig),
        ("gateway-engine.example.toml", EngineDaemonConfig),
    ],
)
def test_an_example_names_every_key_and_loads(name: str, schema: type[msgspec.Struct]) -> None:
    """A key that is missing here is a key that nobody finds."""
    text = (DOCS / name).read_text()
    load(DOCS / name, WHOLE.get(schema, schema))
    for key in schema.__struct_fields__:
        assert key in text, key


def test_the_defaults_in_the_controller_example_are_the_defaults() -> None:
    """But for the switch that turns scale-down on."""
    example = load(DOCS / "controller.example.toml", ControllerConfig).fault_tolerance_config
    assert msgspec.structs.replace(example, enable_dp_scale_down=False) == FaultToleranceConfig()
