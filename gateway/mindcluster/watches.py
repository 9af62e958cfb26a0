"""Which objects of the Kubernetes API are watched for which source."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from kubernetes_asyncio import client

from gateway.config import KubernetesConfig
from gateway.mindcluster.core.device import CheckCode
from gateway.mindcluster.core.node import Condition
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.kubernetes import ListObjects, ObjectWatch
from gateway.mindcluster.sinks import (
    MANUAL_CONFIGMAP,
    BoardSink,
    ClusterSink,
    DeviceSink,
    ManualSink,
    NodeInfoSink,
    NodeSink,
)
from motor_ft.wire.backoff import Backoff

_RAW = "mx-consumer-cim=true"
_GATHERED = "mx-consumer-volcano=true"
_SOURCES = {
    "device": Source.CM_DEVICE,
    "node": Source.CM_NODE,
    "cluster": Source.CM_CLUSTER,
    "manual": Source.CM_MANUAL,
}


def watched_sources(config: KubernetesConfig) -> list[Source]:
    """Return the sources that ``build_watches`` feeds."""
    return [_SOURCES[name] for name in config.configmaps] + [Source.NODE_READY] * config.nodes


def read_conditions(config: KubernetesConfig) -> tuple[Condition, ...]:
    """Return the conditions of nodes that count as faults."""
    return tuple(Condition(each.type, each.bad_status, each.level) for each in config.conditions)


def build_watches(
    api: client.ApiClient,
    config: KubernetesConfig,
    feed: Feed,
    times: Callable[[], Times],
    backoff: Callable[[], Backoff],
) -> Iterator[ObjectWatch]:
    """Make one watch for each kind of object that is configured."""
    core = client.CoreV1Api(api)
    configmaps = core.list_namespaced_config_map
    calls: dict[str, tuple[BoardSink, Callable[..., object]]] = {
        "device": (
            DeviceSink(feed, times, CheckCode(config.check_code)),
            partial(configmaps, "kube-system", label_selector=_RAW),
        ),
        "node": (NodeInfoSink(feed, times), partial(configmaps, "mindx-dl", label_selector=_RAW)),
        "cluster": (ClusterSink(feed, times), partial(configmaps, "mindx-dl", label_selector=_GATHERED)),
        "manual": (
            ManualSink(feed, times),
            partial(configmaps, "cluster-system", field_selector=f"metadata.name={MANUAL_CONFIGMAP}"),
        ),
    }
    wanted = [calls[name] for name in config.configmaps]
    if config.nodes:
        nodes = partial(core.list_node, label_selector=config.node_selector)
        wanted.append((NodeSink(feed, times, read_conditions(config)), nodes))
    for sink, call in wanted:
        raw = cast(ListObjects, partial(call, _preload_content=False))
        yield ObjectWatch(raw, sink, backoff(), watch_sec=config.watch_sec, now=lambda: times().monotonic)
