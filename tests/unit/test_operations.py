"""docs/operations.md lists exactly the metrics that the processes export, and the alerts are made of these."""

import re
from collections import defaultdict
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # ships no types
from prometheus_client import CollectorRegistry

from controller.metrics import ControllerMetrics
from gateway.metrics import EngineMetrics, RestMetrics
from gateway.mindcluster.metrics import MindClusterMetrics
from motor_ft.wire.metrics import MetricsServer, RpcMetrics
from nodemanager.metrics import NodeMetrics

DOCS = Path(__file__).parents[2] / "docs"
PARTS = {
    "controller": (ControllerMetrics, RpcMetrics),
    "nodemanager": (NodeMetrics, RpcMetrics, EngineMetrics, RestMetrics),
    "engine": (EngineMetrics, RpcMetrics),
    "rest": (RestMetrics,),
    "mindcluster": (MindClusterMetrics,),
}
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def exported() -> dict[tuple[str, str], set[str]]:
    """Who exports each metric, by its name and type."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for process, parts in PARTS.items():
        registry = CollectorRegistry()
        MetricsServer("127.0.0.1:0", registry)
        for part in parts:
            part(registry)
        for metric in registry.collect():
            if metric.name.startswith("motor_ft_"):
                name = f"{metric.name}_total" if metric.type == "counter" else metric.name
                found[name, metric.type].add(process)
    return found


async def test_the_metrics_that_are_listed_are_those_that_are_exported() -> None:
    rows = re.findall(
        r"^\| `(motor_ft_\w+)` \| (\w+) \| ([a-z, ]+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE
    )
    listed = {(name, kind): set(processes.split(", ")) for name, kind, processes in rows}
    assert len(listed) == len(rows), "each once"
    assert listed == exported()


async def test_alerts_are_made_of_metrics_that_exist_and_say_what_to_do() -> None:
    names = {
        re.sub("_total$", "", name) + suffix if kind == "counter" else name + suffix
        for name, kind in exported()
        for suffix in SUFFIXES[kind]
    }
    rules = [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        used = set(re.findall(r"\bmotor_ft_\w+", rule["expr"]))
        assert used, rule["alert"]
        assert used <= names, rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]
        assert f"`{rule['alert']}`" in (DOCS / "operations.md").read_text()
