"""When registrations make an instance: possible alone, fitting together, and complete (RFC section 6)."""

from dataclasses import replace

import pytest

from controller.core.assembly import check_fits, check_identity, check_registration, complete, identity
from controller.core.records import IdentityRecord
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.topology import Registration, Role
from tests.unit.controller.core.fleet import pod

ENDPOINTS = "registration.endpoints"


def test_a_registration_with_everything_is_possible() -> None:
    check_registration(pod(1, [0, 3], headless=[1]))


@pytest.mark.parametrize(
    ("registration", "path", "text"),
    [
        (replace(pod(1, [0]), job_name=""), "registration.job_name", "empty"),
        (pod(1, [0], dp_size=0), "registration.dp_size", "at least 1, is 0"),
        (pod(1, []), ENDPOINTS, "without endpoints"),
        (pod(1, [3, 4]), ENDPOINTS, r"ranks \[4\] are outside 0..3"),
        (pod(1, [-1, 0]), ENDPOINTS, r"ranks \[-1\] are outside"),
        (pod(1, [0], headless=[0]), ENDPOINTS, r"ranks \[0\] are named twice"),
        (pod(1, [0], address="10.0.0.1"), "registration.node_manager_address", "host:port, is '10.0.0.1'"),
        (pod(1, [0], address=""), "registration.node_manager_address", "host:port"),
        (pod(1, [0], address="10.0.0.1:²"), "registration.node_manager_address", "host:port"),
    ],
)
def test_an_impossible_registration_is_refused_with_the_path_of_the_field(
    registration: Registration, path: str, text: str
) -> None:
    with pytest.raises(FieldError, match=text) as caught:
        check_registration(registration)
    assert path in caught.value.violations


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(FieldError) as caught:
        check_registration(replace(pod(1, [], address="x"), job_name=""))
    assert len(caught.value.violations) == 3


@pytest.mark.parametrize(
    "other",
    [
        replace(pod(2, [1]), model_name="another"),
        replace(pod(2, [1]), engine_type="another"),
        replace(pod(2, [1]), role=Role.PREFILL),
        pod(2, [1], dp_size=8),
        replace(pod(2, [1]), tp_size=2),
        pod(2, [0, 1]),
    ],
    ids=["model", "engine", "role", "dp size", "tp size", "rank"],
)
def test_pods_that_disagree_or_overlap_do_not_fit(other: Registration) -> None:
    with pytest.raises(FtError, match=r"pod-1.*pod-2") as caught:
        check_fits(pod(1, [0]), [pod(3, [2]), other])
    assert caught.value.reason is Reason.TOPOLOGY_MISMATCH


def test_a_headless_endpoint_may_repeat_a_rank_of_another_pod() -> None:
    check_fits(pod(1, [], headless=[0]), [pod(2, [0])])


def test_an_instance_is_complete_when_every_rank_has_its_routable_endpoint() -> None:
    assert not complete([])
    assert not complete([pod(1, [0, 1, 2])])
    assert not complete([pod(1, [0, 1, 2], headless=[3])])
    assert complete([pod(2, [2, 3], headless=[0]), pod(1, [0, 1])])


def test_a_size_that_no_pods_can_have_is_only_not_complete() -> None:
    """What one reporter says must not cost the Controller its memory."""
    assert not complete([replace(pod(1, [0, 1]), dp_size=10**15)])


def test_an_identity_names_its_pods_in_the_order_of_their_ranks_and_is_not_ready() -> None:
    first, second = pod(2, [0, 1]), pod(1, [2, 3])
    record = identity(7, [second, first])
    assert record.pods == (first, second)
    assert (record.instance_id, record.job_name, record.model_name, record.engine_type) == (7, "job", "model", "vllm")
    assert (record.role, record.dp_size, record.tp_size) == (Role.DECODE, 4, 1)
    assert (record.ready, record.baseline) == (False, ())


WHOLE = identity(7, [pod(1, [0, 1]), pod(2, [2, 3], headless=[0])])


def test_an_identity_that_was_assembled_is_whole() -> None:
    check_identity(WHOLE, 7)


@pytest.mark.parametrize(
    "record",
    [
        replace(WHOLE, instance_id=8),
        replace(WHOLE, dp_size=10**15),
        replace(WHOLE, pods=()),
        replace(WHOLE, pods=WHOLE.pods[:1]),
        replace(WHOLE, pods=(WHOLE.pods[0], pod(2, [2, 3], dp_size=8))),
        replace(WHOLE, pods=(WHOLE.pods[0], pod(2, [2, 3], address="nowhere"))),
    ],
    ids=["of another instance", "another size", "no pods", "a pod is missing", "sizes differ", "an impossible pod"],
)
def test_an_identity_that_cannot_have_been_assembled_is_refused(record: IdentityRecord) -> None:
    with pytest.raises(FieldError):
        check_identity(record, 7)
