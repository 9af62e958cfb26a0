"""What several rows of the matrix assert in the same words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from motor_ft.v1 import controller_pb2 as pb
from tests.support.cluster import Cluster, Deployment
from tests.support.waiting import until


async def scaled_down(cluster: Deployment, dead: list[int]) -> pb.Instance:
    """The instance serves without exactly these ranks."""
    instance = await cluster.until(
        lambda i: list(i.dead_committed) == dead and i.phase == pb.PHASE_SCALED_DOWN_RUNNING and i.can_serve,
        f"runs scaled down without {dead}",
    )
    assert sorted(instance.alive_dp_ranks) == sorted(set(instance.original_dp_ranks) - set(dead))
    assert instance.serving_published
    assert instance.last_error == ""
    assert list(instance.pending_removed_ranks) == []
    return instance


async def reconfiguring(cluster: Deployment, old: pb.Instance) -> pb.Instance:
    """The instance is being rebuilt."""
    return await cluster.until(
        lambda i: i.instance_id == old.instance_id and i.phase == pb.PHASE_RECONFIGURING, "is RECONFIGURING"
    )


async def rebuilt(cluster: Deployment, old: pb.Instance) -> pb.Instance:
    """The old instance is gone and a newer one with all ranks serves."""
    new = await cluster.serving(after=old.instance_id)
    assert new.phase == pb.PHASE_NORMAL
    assert list(new.dead_committed) == []
    return new


async def renewed(cluster: Deployment, old: pb.Instance) -> pb.Instance:
    """Rebuilt, with engines of this process, which are started anew for it."""
    assert cluster.shape.group is not None
    await reconfiguring(cluster, old)
    await cluster.shape.group.rebuild()
    return await rebuilt(cluster, old)


async def decided(cluster: Deployment, *texts: str) -> pb.Instance:
    """The last decision says all of this."""
    return await cluster.until(lambda i: all(text in i.last_decision for text in texts), f"decides: {texts}")


async def completions_work(cluster: Cluster, count: int = 8) -> None:
    """Requests through the Coordinator are answered again."""
    await until(lambda: _answered(cluster), timeout=10)
    statuses = [await cluster.complete() for _ in range(count)]
    assert statuses == [200] * count


async def _answered(cluster: Cluster) -> bool:
    return await cluster.complete() == 200


async def refreshed(cluster: Cluster, count: int) -> None:
    """So many more SETs, one every ``coordinator_set_interval_sec``, have reached the Coordinator."""
    wanted = await _sets(cluster) + count

    async def arrived() -> bool:
        return await _sets(cluster) >= wanted

    await until(arrived)


async def _sets(cluster: Cluster) -> int:
    return sum(view["event"] == "set" for view in await cluster.views())


async def commands(cluster: Deployment, instance: pb.Instance) -> Counter[str]:
    """How often NodeManagers were commanded what, as the history of the instance tells it."""
    request = pb.ListEventsRequest(instance_id=instance.instance_id, kinds=[pb.EVENT_KIND_COMMAND])
    async with cluster.stub() as stub:
        events = (await stub.ListEvents(request, timeout=5)).events
    return Counter(event.attributes["method"] for event in events)


def by_request(applies: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Applies of each request id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for apply in applies:
        found.setdefault(apply["body"]["request_id"], []).append(apply)
    return found


def applied_once(applies: list[dict[str, Any]], ranks: set[int], removed: list[int]) -> dict[str, Any]:
    """One request id, one apply to each of exactly these ranks, the same body everywhere; returns the params."""
    assert Counter(apply["rank"] for apply in applies) == Counter(ranks)
    assert len({apply["body"]["request_id"] for apply in applies}) == 1
    bodies = [apply["body"] for apply in applies]
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["instruction"] == "scale_down"
    params: dict[str, Any] = bodies[0]["params"]
    assert params["removed_dp_ranks"] == removed
    assert params["dp_master_ip"] == "127.0.0.1"
    assert params["dp_store_port"] > 0
    return params


def view_ranks(view: dict[str, Any]) -> set[int]:
    """Ranks that a refresh names."""
    return {
        endpoint["id"]
        for instance in view["instances"]
        for endpoints in instance["endpoints"].values()
        for endpoint in endpoints.values()
    }
