"""The table has every method that is served, and none that does not exist."""

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from motor_ft.v1 import (
    common_pb2,
    controller_pb2,
    coordinator_pb2,
    engine_pb2,
    fault_report_pb2,
    node_lifecycle_pb2,
    node_manager_pb2,
)
from motor_ft.wire.policy import POLICIES, Lease

FILES = [
    controller_pb2,
    coordinator_pb2,
    engine_pb2,
    fault_report_pb2,
    node_lifecycle_pb2,
    node_manager_pb2,
    health_pb2,
    reflection_pb2,
]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


NEWER = {"/grpc.health.v1.Health/List"}
"""Methods that the oldest supported releases do not have yet."""


def test_the_table_has_exactly_the_methods_of_the_services() -> None:
    assert POLICIES.keys() - NEWER == METHODS.keys() - NEWER
    assert METHODS.keys() <= POLICIES.keys()


def with_header(header: Descriptor) -> set[str]:
    """Methods whose requests carry such a header."""
    found = descriptor_pool.Default().FindMessageTypeByName(header.full_name)
    return {
        name
        for name, method in METHODS.items()
        if any(field.message_type is found for field in method.input_type.fields)
    }


def test_exactly_the_methods_with_a_header_are_commands() -> None:
    commands = with_header(common_pb2.CommandHeader.DESCRIPTOR) | with_header(common_pb2.OperatorHeader.DESCRIPTOR)
    assert {name for name, policy in POLICIES.items() if policy.command} == commands


def test_what_an_operator_orders_is_carried_out_once() -> None:
    orders = with_header(common_pb2.OperatorHeader.DESCRIPTOR)
    assert orders == {
        f"/motor_ft.v1.ControllerService/{method}" for method in ("PauseAutomation", "ResumeAutomation", "Reconfigure")
    }
    assert all(POLICIES[name].dedupe for name in orders)


def test_only_commands_are_deduplicated_or_leased() -> None:
    for name, policy in POLICIES.items():
        assert policy.command or not (policy.dedupe or policy.lease is not Lease.NONE), name
