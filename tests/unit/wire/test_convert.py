"""Everything that crosses the wire comes back equal; what is malformed is refused with the path of its field."""

import math
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from motor_ft.model.command import Command, OperatorCommand, freeze_plan
from motor_ft.model.engine import (
    ApplyOutcome,
    EngineObservation,
    EngineStatus,
    FtState,
    ProbeOutcome,
    Problem,
    RankOutcome,
    RankProbe,
)
from motor_ft.model.errors import FieldError
from motor_ft.model.topology import Device, Endpoint, FtCapability, Registration, Role
from motor_ft.v1 import common_pb2
from motor_ft.wire import convert

texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=20)
ranks = st.integers(0, 2**31 - 1)
counters = st.integers(0, 2**63 - 1)
seconds = st.integers(0, 10**12).map(lambda nanoseconds: nanoseconds / 1e9)

commands = st.builds(
    Command,
    instance_id=st.integers(1, 2**63 - 1),
    request_id=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128),
    epoch=counters,
    generation=counters,
)
readings = st.builds(
    EngineObservation,
    rank=ranks,
    status=st.sampled_from([status for status in EngineStatus if status is not EngineStatus.UNKNOWN]),
    incarnation=texts,
    observation=counters,
    ft_state=st.sampled_from(FtState),
    fault_info=texts,
    last_ft_request_id=texts,
    ft_error=texts,
    mask=st.lists(st.integers(0, 1)).map(tuple),
    detail=texts,
)
failed_readings = st.builds(
    EngineObservation,
    rank=ranks,
    status=st.just(EngineStatus.UNKNOWN),
    problem=st.sampled_from([problem for problem in Problem if problem is not Problem.NONE]),
    detail=texts,
)
outcomes = st.builds(
    RankOutcome,
    rank=ranks,
    outcome=st.sampled_from(ApplyOutcome),
    detail=texts,
    observation=counters,
    engine_request_id=texts,
)
capabilities = st.builds(FtCapability, dialect=names, num_redundant_experts=ranks, engine_recovery_timeout_sec=seconds)


@st.composite
def registrations(draw: st.DrawFn) -> Registration:
    members = draw(st.sets(st.integers(0, 63), min_size=1, max_size=4))
    cards = st.lists(st.builds(Device, device_id=texts, device_ip=texts), max_size=2).map(tuple)
    endpoints = tuple(
        Endpoint(rank, draw(names), draw(st.integers(1, 65535)), draw(st.booleans()), draw(cards), draw(texts))
        for rank in members
    )
    return draw(
        st.builds(
            Registration,
            pod_uid=texts,
            job_name=names,
            model_name=texts,
            engine_type=texts,
            role=st.sampled_from(Role),
            node_name=texts,
            pod_name=names,
            pod_ip=names,
            node_manager_address=names,
            dp_size=st.just(64),
            tp_size=st.integers(1, 8),
            endpoints=st.just(endpoints),
            capability=st.none() | capabilities,
            rest_port=st.integers(0, 65535),
        )
    )


@given(commands)
def test_command_round_trip(command: Command) -> None:
    assert convert.command_from_header(convert.command_to_header(command)) == command


@given(readings | failed_readings)
def test_observation_round_trip(observation: EngineObservation) -> None:
    assert convert.observation_from_pb(convert.observation_to_pb(observation)) == observation


@given(st.builds(RankProbe, rank=ranks, outcome=st.sampled_from(ProbeOutcome), detail=texts))
def test_probe_round_trip(probe: RankProbe) -> None:
    assert convert.probe_from_pb(convert.probe_to_pb(probe)) == probe


@given(outcomes)
def test_outcome_round_trip(outcome: RankOutcome) -> None:
    assert convert.outcome_from_pb(convert.outcome_to_pb(outcome)) == outcome


@given(st.sets(ranks), st.dictionaries(ranks, texts, min_size=1))
def test_plan_round_trip(removed: set[int], survivors: dict[int, str]) -> None:
    plan = freeze_plan(1, 2, frozenset(removed - survivors.keys()), survivors)
    assert convert.plan_from_pb(convert.plan_to_pb(plan)) == plan


@given(registrations())
def test_registration_round_trip(registration: Registration) -> None:
    read = convert.registration_from_pb(convert.registration_to_pb(registration), registration.pod_uid)
    assert read == registration
    assert [endpoint.incarnation for endpoint in read.endpoints] == [
        endpoint.incarnation for endpoint in registration.endpoints
    ]


@given(st.floats(-1e6, 1e6))
def test_duration_round_trip_to_the_nanosecond(sec: float) -> None:
    assert convert.duration_from_pb(convert.duration_to_pb(sec)) == pytest.approx(sec, abs=1e-9)


@pytest.mark.parametrize("sec", [math.nan, math.inf])
def test_a_duration_that_is_not_finite_is_refused(sec: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        convert.duration_to_pb(sec)


@pytest.mark.parametrize(("sec", "nanos"), [(1, -1), (0, 1_000_000_000), (2**62, 0)])
def test_a_malformed_duration_names_its_field(sec: int, nanos: int) -> None:
    with pytest.raises(FieldError) as refused:
        convert.duration_from_pb(Duration(seconds=sec, nanos=nanos), "lease")
    assert list(refused.value.violations) == ["lease"]


COMMAND = Command(7, "id", 0, 0)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (replace(COMMAND, instance_id=0), "instance_id"),
        (replace(COMMAND, instance_id=-1), "instance_id"),
        (replace(COMMAND, request_id=""), "request_id"),
        (replace(COMMAND, request_id="x" * 129), "request_id"),
        (replace(COMMAND, request_id="a\nb"), "request_id"),
        (replace(COMMAND, request_id="ä"), "request_id"),
        (replace(COMMAND, epoch=None), "controller_epoch"),
        (replace(COMMAND, epoch=-1), "controller_epoch"),
        (replace(COMMAND, generation=None), "generation"),
        (replace(COMMAND, generation=-1), "generation"),
    ],
)
def test_a_bad_header_names_its_field(command: Command, field: str) -> None:
    with pytest.raises(FieldError) as refused:
        convert.command_from_header(convert.command_to_header(command))
    assert list(refused.value.violations) == [f"header.{field}"]


def test_a_bad_header_names_all_its_fields() -> None:
    with pytest.raises(FieldError) as refused:
        convert.command_from_header(common_pb2.CommandHeader())
    assert len(refused.value.violations) == 4


ORDER = OperatorCommand(7, "r-1", "ann", "upgrade of node-3", 4)


def operator_header(**changed: object) -> common_pb2.OperatorHeader:
    """Of ``ORDER``."""
    fields = {"instance_id": 7, "request_id": "r-1", "operator": "ann", "reason": "upgrade of node-3"}
    return common_pb2.OperatorHeader(**{**fields, "expected_generation": 4, **changed})  # type: ignore[arg-type]


def test_an_operator_may_leave_out_the_generation_and_nothing_else() -> None:
    assert convert.operator_from_header(operator_header()) == ORDER
    anyhow = convert.operator_from_header(operator_header(expected_generation=None))
    assert anyhow == replace(ORDER, expected_generation=None)
    with pytest.raises(FieldError) as refused:
        convert.operator_from_header(common_pb2.OperatorHeader())
    assert list(refused.value.violations) == [
        f"header.{f}" for f in ("instance_id", "request_id", "operator", "reason")
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_id", -1),
        ("request_id", "é"),
        ("operator", "  "),
        ("operator", "a" * 129),
        ("reason", " "),
        ("reason", "a" * 1001),
        ("reason", "two\nlines"),
        ("expected_generation", -1),
    ],
)
def test_a_bad_operator_header_names_its_field(field: str, value: object) -> None:
    """Lines cannot be forged in a log or on a terminal."""
    with pytest.raises(FieldError) as refused:
        convert.operator_from_header(operator_header(**{field: value}))
    assert list(refused.value.violations) == [f"header.{field}"]


OBSERVATION = convert.observation_to_pb(EngineObservation(0, EngineStatus.DEAD))


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"dp_rank": -1}, "observation.dp_rank"),
        ({"observation": -1}, "observation.observation"),
        ({"status": common_pb2.ENGINE_STATUS_UNSPECIFIED}, "observation.status"),
        ({"status": 99}, "observation.status"),
        ({"ft_state": 99}, "observation.ft_state"),
        ({"problem": 99}, "observation.problem"),
        ({"problem": common_pb2.OBSERVATION_PROBLEM_LOCAL}, "observation.problem"),
        ({"status": common_pb2.ENGINE_STATUS_UNKNOWN}, "observation.problem"),
    ],
)
def test_a_bad_observation_names_its_field(fields: dict[str, int], path: str) -> None:
    message = common_pb2.EngineObservation()
    message.CopyFrom(OBSERVATION)
    for field, value in fields.items():
        setattr(message, field, value)
    with pytest.raises(FieldError) as refused:
        convert.observation_from_pb(message)
    assert list(refused.value.violations) == [path]


@pytest.mark.parametrize(
    ("removed", "survivors", "plan_hash", "path"),
    [
        ([2, 1], [0], "h", "plan.removed_dp_ranks"),
        ([1, 1], [0], "h", "plan.removed_dp_ranks"),
        ([-1], [0], "h", "plan.removed_dp_ranks"),
        ([1], [], "h", "plan.survivors"),
        ([1], [2, 0], "h", "plan.survivors"),
        ([1], [0, 1], "h", "plan.survivors"),
        ([1], [0], "", "plan.plan_hash"),
    ],
)
def test_a_bad_plan_names_its_field(removed: list[int], survivors: list[int], plan_hash: str, path: str) -> None:
    message = common_pb2.ScaleDownPlan(
        removed_dp_ranks=removed,
        survivors=[common_pb2.Survivor(dp_rank=rank) for rank in survivors],
        plan_hash=plan_hash,
    )
    with pytest.raises(FieldError) as refused:
        convert.plan_from_pb(message)
    assert list(refused.value.violations) == [path]


CAPABILITY = FtCapability("vllm_v1", True, True, True, False, True, 2)
REGISTRATION = Registration(
    pod_uid="uid",
    job_name="job",
    model_name="",
    engine_type="vllm",
    role=Role.DECODE,
    node_name="",
    pod_name="pod",
    pod_ip="10.0.0.1",
    node_manager_address="10.0.0.1:9",
    dp_size=4,
    tp_size=1,
    endpoints=(Endpoint(0, "10.0.0.1", 80), Endpoint(1, "10.0.0.1", 81)),
    capability=CAPABILITY,
)
FIRST, SECOND = REGISTRATION.endpoints


@pytest.mark.parametrize(
    ("registration", "path"),
    [
        (replace(REGISTRATION, job_name=""), "job_name"),
        (replace(REGISTRATION, dp_size=0), "dp_size"),
        (replace(REGISTRATION, tp_size=0), "tp_size"),
        (replace(REGISTRATION, rest_port=65536), "rest_port"),
        (replace(REGISTRATION, endpoints=()), "endpoints"),
        (replace(REGISTRATION, endpoints=(FIRST, FIRST)), "endpoints"),
        (replace(REGISTRATION, dp_size=1), "endpoints"),
        (replace(REGISTRATION, endpoints=(FIRST, replace(SECOND, rank=-1))), "endpoints[1].dp_rank"),
        (replace(REGISTRATION, endpoints=(FIRST, replace(SECOND, ip=""))), "endpoints[1].ip"),
        (replace(REGISTRATION, endpoints=(FIRST, replace(SECOND, business_port=0))), "endpoints[1].business_port"),
        (replace(REGISTRATION, capability=replace(CAPABILITY, dialect="")), "capability.dialect"),
        (
            replace(REGISTRATION, capability=replace(CAPABILITY, engine_recovery_timeout_sec=-1.0)),
            "capability.engine_recovery_timeout",
        ),
    ],
)
def test_a_bad_registration_names_its_field(registration: Registration, path: str) -> None:
    with pytest.raises(FieldError) as refused:
        convert.registration_from_pb(convert.registration_to_pb(registration), "uid")
    assert list(refused.value.violations) == [f"hello.registration.{path}"]
