"""The fake Coordinator's view applies a refresh whole or not at all, and checks identity (protocol.md section 5)."""

from http import HTTPStatus

import pytest

from tests.support.coordinator.view import RefreshError, View


def instance(number: int, *ranks: int, job: str = "job-0", **endpoint: object) -> dict[str, object]:
    """An instance with one pod and these ranks."""
    endpoints = {
        str(index): {"id": rank, "ip": "10.0.0.1", "business_port": f"80{rank:02}", "status": "normal", **endpoint}
        for index, rank in enumerate(ranks)
    }
    return {"id": number, "job_name": job, "role": "union", "endpoints": {"10.0.0.1": endpoints}}


def refresh(view: View, event: str, *instances: dict[str, object]) -> None:
    view.refresh({"event": event, "instances": [*instances]})


def ranks(view: View) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    for held, endpoint in view.routable():
        result.setdefault(held.number, []).append(endpoint.number)
    return result


def test_del_then_add_replaces_a_view() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1, 2, 3))
    refresh(view, "del", instance(1, 0, 1, 2, 3))
    assert view.instances == {}
    refresh(view, "add", instance(1, 0, 2, 3))
    assert ranks(view) == {1: [0, 2, 3]}


@pytest.mark.parametrize("other", [instance(1, 0, 1), instance(1, 0, 1, 2, job="job-1")])
def test_del_of_another_view_is_refused_and_changes_nothing(other: dict[str, object]) -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1, 2), instance(2, 0))
    with pytest.raises(RefreshError, match="identity validation failed") as error:
        refresh(view, "del", instance(2, 0), other)
    assert error.value.status == HTTPStatus.CONFLICT
    assert ranks(view) == {1: [0, 1, 2], 2: [0]}


def test_identity_is_about_addresses_not_about_the_health_of_an_endpoint() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1))
    refresh(view, "del", instance(1, 0, 1, status="abnormal"))
    assert view.instances == {}


@pytest.mark.parametrize("event", ["del", "pause"])
def test_an_unknown_instance_is_named_as_such(event: str) -> None:
    with pytest.raises(RefreshError, match=r"unknown instances \[7\]") as error:
        refresh(View(), event, instance(7, 0))
    assert error.value.status == HTTPStatus.NOT_FOUND


def test_add_again_is_idempotent_but_never_changes_a_view() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1))
    refresh(view, "add", instance(1, 0, 1))
    with pytest.raises(RefreshError, match="identity validation failed"):
        refresh(view, "add", instance(1, 0, 1, 2))
    assert ranks(view) == {1: [0, 1]}


def test_set_is_the_whole_truth_also_when_empty() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1), instance(2, 0))
    refresh(view, "set", instance(1, 1), instance(3, 0))
    assert ranks(view) == {1: [1], 3: [0]}
    refresh(view, "set")
    assert view.instances == {}


def test_a_paused_instance_gets_no_requests_until_resumed() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1))
    refresh(view, "pause", instance(1, 0, 1))
    assert ranks(view) == {}
    refresh(view, "resume", instance(1, 1))
    assert ranks(view) == {1: [1]}


@pytest.mark.parametrize("event", ["add", "set"])
def test_add_and_set_let_requests_in_whatever_the_status_says(event: str) -> None:
    """As Motor does: who sends them must not name what is paused."""
    view = View()
    refresh(view, "add", instance(1, 0))
    refresh(view, "pause", instance(1, 0))
    refresh(view, event, instance(1, 0) | {"status": "inactive"})
    assert ranks(view) == {1: [0]}


def test_resume_of_what_is_not_paused_means_nothing() -> None:
    view = View()
    refresh(view, "add", instance(1, 0))
    refresh(view, "resume", instance(1, 0, 1), instance(2, 0))
    assert ranks(view) == {1: [0]}


def test_headless_endpoints_are_held_but_get_no_requests() -> None:
    view = View()
    refresh(view, "add", instance(1, 0, 1, headless=True))
    assert len(view.instances[1].endpoints) == 2
    assert view.routable() == []


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"event": "add"},
        {"event": "boom", "instances": []},
        {"instances": []},
        {"event": "add", "instances": [{"id": 1}]},
        {"event": "add", "instances": [instance(1, 0) | {"id": "x"}]},
        {"event": "add", "instances": [instance(1, 0) | {"endpoints": []}]},
        {"event": "add", "instances": [instance(1, 0), instance(1, 1)]},
    ],
)
def test_malformed_refreshes_are_refused(body: object) -> None:
    view = View()
    refresh(view, "add", instance(9, 0))
    with pytest.raises(RefreshError) as error:
        view.refresh(body)
    assert error.value.status == HTTPStatus.BAD_REQUEST
    assert ranks(view) == {9: [0]}
