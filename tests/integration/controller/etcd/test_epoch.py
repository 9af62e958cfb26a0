"""An etcd that is younger than the fleet: nobody leads until an operator has seen to it (protocol.md section 3)."""

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as Status

from motor_ft.model.errors import Reason
from motor_ft.wire.errors import from_rpc_error
from tests.integration.controller.etcd.conftest import ControllerProcess, Start
from tests.support.processes import Running, python_module

AHEAD = 4_000_000


async def refused(controller: ControllerProcess, highest_epoch: int) -> None:
    """A pod that has followed this epoch is told that the Controller is behind."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await controller.hello(highest_epoch)
    assert from_rpc_error(refusal.value).reason is Reason.EPOCH_BEHIND_FLEET


async def raised(controller: ControllerProcess, *flags: str) -> str:
    """What ``motor-controller raise-epoch`` says at last."""
    command = python_module("controller", "raise-epoch", "--config", str(controller.config), *flags)
    async with Running(command, name="raise-epoch") as operator:
        assert await operator.wait() == 0
        return operator.output[-1]


async def test_a_controller_behind_the_fleet_leads_only_after_an_operator_has_raised_the_epoch(start: Start) -> None:
    first = await start("first", 2)
    await first.line("controller serves")
    assert await first.metric("motor_ft_leading") == "1.0"
    await refused(first, AHEAD)
    assert await first.wait() == 1
    assert first.output[-1].startswith(
        f"motor-controller: EPOCH_BEHIND_FLEET: the fleet has followed epoch {AHEAD}, here it would be "
    )
    assert first.output[-1].endswith(f"motor-controller raise-epoch --config FILE --above {AHEAD}")

    second = await start("second", 2)
    await second.line("EPOCH_BEHIND_FLEET")
    assert await second.ready() == 503
    assert await second.serves() == [Status.NOT_SERVING] * 3
    assert await second.metric("motor_ft_epoch_behind_fleet") == "1.0"
    assert await second.metric("motor_ft_leading") == "0.0"
    await refused(second, 0)

    would = f"the epoch offset 0 would be raised to {AHEAD}: every term that begins from then on is above {AHEAD}"
    assert await raised(second, "--dry-run") == would
    assert await raised(second) == would.replace("would be", "is")
    await second.line("controller serves")
    assert await second.metric("motor_ft_epoch_behind_fleet") == "0.0"
    assert (await second.hello(AHEAD)).welcome.controller_epoch > AHEAD
    assert "stays" in await raised(second)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["raise-epoch", "--above", "0"], 2, "argument --above: must be 1 to"),
        (["raise-epoch", "--above", "many"], 2, "argument --above: must be 1 to"),
        (["--above", "5"], 2, "--above and --dry-run belong to raise-epoch"),
        (["raise-epoch", "--above", "5"], 2, 'store.kind: is "sqlite", which raises its epoch by itself'),
    ],
)
async def test_what_makes_no_sense_is_said(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str], code: int, says: str
) -> None:
    config = tmp_path_factory.mktemp("config") / "controller.toml"
    config.write_text("")
    command = python_module("controller", *arguments, "--config", str(config))
    async with Running(command, name="raise-epoch") as operator:
        assert await operator.wait() == code
        assert says in operator.output[-1]
