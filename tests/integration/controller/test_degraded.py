"""What a ``motor-controller`` process tells while its disk is full, and while its Coordinator is dead."""

import asyncio
import resource
from pathlib import Path

import aiohttp

from tests.support.cluster.shape import toml
from tests.support.ports import free_ports
from tests.support.processes import Running, python_module


async def test_a_full_disk_and_a_dead_coordinator_are_told_while_they_last(tmp_path: Path) -> None:
    """The process stays ready: it leads, and what serves goes on."""
    port, metrics_port = free_ports(2)
    coordinator_port, admin_port = free_ports(2)
    store = tmp_path / "controller.db"
    config = tmp_path / "controller.toml"
    config.write_text(
        toml(
            {
                "listen": f"127.0.0.1:{port}",
                "metrics_listen": f"127.0.0.1:{metrics_port}",
                "coordinators": [f"http://127.0.0.1:{coordinator_port}"],
                "store": {"path": str(store)},
                "fault_tolerance_config": {"heartbeat_interval_sec": 0.1, "heartbeat_ttl_sec": 0.2},
            }
        )
    )
    flags = [f"--port={coordinator_port}", f"--admin-port={admin_port}"]
    async with aiohttp.ClientSession() as http:

        async def text(path: str) -> str:
            async with http.get(f"http://127.0.0.1:{metrics_port}{path}") as answer:
                assert answer.status == 200
                return await answer.text()

        async def tells(ready: str, metric: str) -> None:
            while True:
                told = await text("/readyz")
                if ready in {told, *told.splitlines()}:
                    break
                await asyncio.sleep(0.05)
            assert metric in (await text("/metrics")).splitlines()

        confirms = f'motor_ft_coordinator_confirms{{coordinator="http://127.0.0.1:{coordinator_port}"}}'
        async with Running(python_module("controller", "--config", str(config)), name="controller") as controller:
            await controller.line("controller serves")
            async with Running(python_module("tests.support.coordinator", *flags), name="coordinator"):
                await tells("ready\n", f"{confirms} 1.0")
            away = f"degraded: Coordinator http://127.0.0.1:{coordinator_port} has not confirmed the serving view"
            await tells(away, f"{confirms} 0.0")
            async with Running(python_module("tests.support.coordinator", *flags), name="coordinator"):
                await tells("ready\n", f"{confirms} 1.0")
                limits = resource.prlimit(controller.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(controller.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
                full = (await controller.line("the store cannot be written")).string
                assert str(store) in full
                told = await text("/readyz")
                assert told.startswith(f"ready\ndegraded: the store cannot be written: store file {store}: ")
                assert "motor_ft_store_available 0.0" in await text("/metrics")
                resource.prlimit(controller.pid, resource.RLIMIT_FSIZE, limits)
                await controller.line("the store can be written again")
                await tells("ready\n", "motor_ft_store_available 1.0")
