"""A configuration of the Controller that cannot work is refused with key path and numbers (recovery.md section 9)."""

import json
from pathlib import Path

import pytest

from controller.config import ControllerConfig
from controller.core.hardware import HardwarePolicy, LinkDown, PreSeparate
from controller.core.probe import CompletionProbe
from controller.fault_manager.environment import Settings
from motor_ft.wire.config import ConfigError, load


def read(tmp_path: Path, config: object) -> ControllerConfig:
    path = tmp_path / "controller.json"
    path.write_text(json.dumps(config))
    return load(path, ControllerConfig)


def refusal(tmp_path: Path, config: object) -> str:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, config)
    return str(refused.value).removeprefix(f"{tmp_path / 'controller.json'}: ")


def test_an_empty_file_has_the_documented_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert config.fault_tolerance_config.settings == Settings()
    assert config.store.kind == "sqlite"


def test_scale_down_needs_both_switches(tmp_path: Path) -> None:
    for fault_tolerance, scale_down in ((True, True), (True, False), (False, True)):
        ft = {"enable_fault_tolerance": fault_tolerance, "enable_dp_scale_down": scale_down}
        settings = read(tmp_path, {"fault_tolerance_config": ft}).fault_tolerance_config.settings
        assert settings.scale_down_enabled is (fault_tolerance and scale_down)


def test_what_the_file_says_reaches_the_fault_manager(tmp_path: Path) -> None:
    ft = {
        "dp_scale_down_config": {"request_timeout_sec": 2, "poll_interval_sec": 0.5, "execution_deadline_sec": 20},
        "fault_collection_timeout_sec": 30,
        "strategy_center_check_interval": 7,
        "engine_recovery_timeout_sec": 90,
        "engine_poll_interval_sec": 0.7,
        "status_unreachable_threshold": 3,
        "heartbeat_interval_sec": 1,
        "heartbeat_ttl_sec": 4,
        "assemble_timeout_sec": 100,
        "hardware_ft_correlation_window_sec": 8,
        "hardware_type": "800I-A3",
        "hardware_link_down": "count",
        "hardware_pre_separate": "hard",
        "enable_dp_scale_down": True,
        "enable_dp_scale_up": True,
        "fast_recovery": True,
        "completion_probe": "on",
        "idle_probe": True,
        "enable_engine_relaunch": False,
        "engine_relaunch_timeout_sec": 500,
        "engine_relaunch_poll_interval_sec": 4,
        "engine_relaunch_misses": 2,
        "enable_scale_p2d": False,
        "scale_p2d_wait_sec": 50,
        "enable_token_reinference": False,
        "token_reinference_codes": ["0xA"],
        "token_reinference_timeout_sec": 40,
        "heartbeat_ttl_other_sec": 200,
    }
    settings = read(tmp_path, {"fault_tolerance_config": ft}).fault_tolerance_config.settings
    assert settings.limits.lease == 2 * 20 + 4 * 2 + 5
    assert settings.engine_request_timeout == pytest.approx(1.6)
    assert (settings.fault_collection_timeout, settings.strategy_center_check_interval) == (30, 7)
    assert (settings.engine_recovery_timeout, settings.poll_interval) == (90, 0.7)
    assert (settings.heartbeat_interval, settings.heartbeat_ttl, settings.assemble_timeout) == (1, 4, 100)
    assert settings.status_unreachable_threshold == 3
    assert settings.correlation_window == 8
    assert settings.hardware_policy == HardwarePolicy("800I-A3", LinkDown.COUNT, PreSeparate.HARD, frozenset({"A"}))
    assert settings.enable_dp_scale_up
    assert settings.fast_recovery
    assert (settings.completion_probe, settings.idle_probe) == (CompletionProbe.ON, True)
    assert not settings.enable_engine_relaunch
    assert (settings.engine_relaunch_timeout, settings.engine_relaunch_poll_interval) == (500, 4)
    assert settings.engine_relaunch_misses == 2
    assert (settings.enable_scale_p2d, settings.scale_p2d_wait) == (False, 50)
    assert (settings.enable_token_reinference, settings.token_reinference_timeout) == (False, 40)
    assert settings.heartbeat_ttl_other == 200


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            {"dp_scale_down_config": {"execution_deadline_sec": 1790}, "engine_recovery_timeout_sec": 4000},
            "fault_tolerance_config.dp_scale_down_config.execution_deadline_sec: the guard lease of "
            "2 x execution_deadline_sec + 4 x request_timeout_sec + poll would be 3605 s; "
            "a NodeManager takes at most 3600 s",
            id="lease-over-an-hour",
        ),
        pytest.param(
            {"engine_request_timeout_sec": 5},
            "fault_tolerance_config.engine_request_timeout_sec: "
            "5 s must be below dp_scale_down_config.request_timeout_sec = 5 s",
            id="engine-not-faster-than-request",
        ),
        pytest.param(
            {"fault_collection_timeout_sec": 101},
            "fault_tolerance_config.fault_collection_timeout_sec: "
            "101 s + 20 s to apply is more than engine_recovery_timeout_sec = 120 s",
            id="collection-outlasts-the-engines",
        ),
        pytest.param(
            {"dp_scale_down_config": {"execution_deadline_sec": 101}},
            "fault_tolerance_config.dp_scale_down_config.execution_deadline_sec: "
            "101 s + 20 s to apply is more than engine_recovery_timeout_sec = 120 s",
            id="execution-outlasts-the-engines",
        ),
        pytest.param(
            {
                "fault_collection_timeout_sec": 5,
                "dp_scale_down_config": {"execution_deadline_sec": 5},
                "engine_recovery_timeout_sec": 34,
            },
            "fault_tolerance_config.engine_recovery_timeout_sec: 34 s is less than the 35 s that a scale-down needs "
            "to begin",
            id="no-scale-down-could-begin",
        ),
        pytest.param(
            {"heartbeat_interval_sec": 10},
            "fault_tolerance_config.heartbeat_ttl_sec: 10 s must be above heartbeat_interval_sec = 10 s",
            id="every-heartbeat-late",
        ),
        pytest.param(
            {"heartbeat_ttl_other_sec": 9},
            "fault_tolerance_config.heartbeat_ttl_other_sec: 9 s must not be below heartbeat_ttl_sec = 10 s",
            id="forgotten-before-missed",
        ),
        pytest.param(
            {"fast_recovery": True},
            "fault_tolerance_config.fast_recovery: needs enable_fault_tolerance and enable_dp_scale_down",
            id="fast-recovery-alone",
        ),
        pytest.param(
            {"fast_recovery": True, "enable_dp_scale_down": True, "enable_fault_tolerance": False},
            "fault_tolerance_config.fast_recovery: needs enable_fault_tolerance and enable_dp_scale_down",
            id="fast-recovery-without-fault-tolerance",
        ),
        pytest.param(
            {"token_reinference_codes": ["0x1", "L2"]},
            "fault_tolerance_config.token_reinference_codes[1]: expected `str` matching regex '^(0[xX])?[0-9a-fA-F]+$'",
            id="no-code",
        ),
        pytest.param(
            {"status_unreachable_threshold": 0},
            "fault_tolerance_config.status_unreachable_threshold: expected `int` >= 1",
            id="threshold-zero",
        ),
        pytest.param(
            {"hardware_type": "A9"},
            "fault_tolerance_config.hardware_type: 'A9' names no generation that is known: write A1, A2, A3 or A5, "
            "also as in 800I-A2, or leave it empty and say in hardware_link_down what a lost link means",
            id="unknown-hardware",
        ),
        pytest.param(
            {"dp_scale_down_config": {"poll_interval_sec": 31}},
            "fault_tolerance_config.dp_scale_down_config.poll_interval_sec: "
            "31 s must not be above execution_deadline_sec = 30 s",
            id="never-polled",
        ),
        pytest.param(
            {"engine_relaunch_timeout_sec": 4},
            "fault_tolerance_config.engine_relaunch_poll_interval_sec: "
            "5 s must not be above engine_relaunch_timeout_sec = 4 s",
            id="relaunch-never-polled",
        ),
        pytest.param(
            {"hardware_link_down": "maybe"},
            "fault_tolerance_config.hardware_link_down: invalid enum value 'maybe', "
            "must be one of 'auto', 'count', 'ignore'",
            id="unknown-policy",
        ),
        pytest.param(
            {"fault_collection_timeout_sec": 0},
            "fault_tolerance_config.fault_collection_timeout_sec: expected `float` > 0.0",
            id="zero-seconds",
        ),
        pytest.param(
            {"enable_dp_scale_down_proxy": True},
            "fault_tolerance_config.enable_dp_scale_down_proxy: unknown key; did you mean enable_dp_scale_down?",
            id="derived-switch",
        ),
        pytest.param(
            {"enable_dp_scale_down": "yes"},
            "fault_tolerance_config.enable_dp_scale_down: expected `bool`, got `str`",
            id="wrong-type",
        ),
        pytest.param(
            {"dp_scale_down_config": {"request_timeout": 5}},
            "fault_tolerance_config.dp_scale_down_config.request_timeout: unknown key; "
            "did you mean request_timeout_sec?",
            id="unknown-inner-key",
        ),
    ],
)
def test_an_impossible_combination_names_key_and_numbers(tmp_path: Path, config: object, message: str) -> None:
    assert refusal(tmp_path, {"fault_tolerance_config": config}) == message


def test_a_boundary_is_possible(tmp_path: Path) -> None:
    ft = {"fault_collection_timeout_sec": 100, "dp_scale_down_config": {"execution_deadline_sec": 100}}
    read(tmp_path, {"fault_tolerance_config": ft})


def test_a_coordinator_has_a_known_scheme(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"coordinators": ["http://a:1", "b:2"]}) == (
        "coordinators[1]: must be http://host:port or https://host:port or grpc://host:port "
        "or grpcs://host:port, not 'b:2'"
    )


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "[::]"])
def test_what_is_advertised_is_a_place(tmp_path: Path, everywhere: str) -> None:
    assert refusal(tmp_path, {"advertise": f"{everywhere}:50051"}).startswith(f"advertise: {everywhere} is everywhere")


@pytest.mark.parametrize("key", ["listen", "metrics_listen"])
def test_an_address_has_a_port(tmp_path: Path, key: str) -> None:
    assert refusal(tmp_path, {key: "127.0.0.1"}).startswith(f"{key}: must be host:port")


def test_a_store_is_of_a_known_kind(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"store": {"kind": "redis"}}).startswith("store.kind: ")


def test_what_belongs_to_another_kind_of_store_is_refused(tmp_path: Path) -> None:
    """Two Controllers with files of their own, where somebody has meant one etcd, would both lead."""
    etcd = {"endpoints": ["http://a:1"]}
    assert refusal(tmp_path, {"store": {"etcd": etcd}}) == (
        'store.etcd: has no effect with kind = "sqlite": leave it out, or write kind = "etcd"'
    )
    assert refusal(tmp_path, {"store": {"kind": "etcd", "etcd": etcd, "path": "a.db"}}) == (
        'store.path: has no effect with kind = "etcd": leave it out, or write kind = "sqlite"'
    )


def test_nothing_is_named_twice(tmp_path: Path) -> None:
    """A Coordinator with two writers is told two things at once."""
    twice = ["http://a:1", "http://a:1"]
    assert refusal(tmp_path, {"coordinators": twice}).startswith("coordinators[1]: 'http://a:1' is coordinators[0] ")
    store = {"kind": "etcd", "etcd": {"endpoints": twice}}
    assert refusal(tmp_path, {"store": store}).startswith("store.etcd.endpoints[1]: ")
    listens = {"listen": "0.0.0.0:9090"}
    assert refusal(tmp_path, listens).startswith("metrics_listen: 127.0.0.1:9090 is where listen listens already")
    read(tmp_path, {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"})


def test_files_are_looked_at(tmp_path: Path) -> None:
    etcd = {"endpoints": ["https://a:1"]}
    store = {"kind": "etcd", "etcd": etcd}
    read(tmp_path, {"store": store}).check_files()
    for change in ({"ca_file": "gone.pem"}, {"user": "motor", "password_file": "gone"}):
        with pytest.raises(ConfigError, match=r"store.etcd.*_file: cannot read gone.*: No such file"):
            read(tmp_path, {"store": store | {"etcd": etcd | change}}).check_files()


def test_a_coordinator_over_tls_needs_the_section_that_says_how(tmp_path: Path) -> None:
    coordinators = {"coordinators": ["grpcs://a:1"]}
    assert refusal(tmp_path, coordinators) == "coordinators[0]: grpcs:// needs tls.ca_file"
    files = {"ca_file": "ca.pem", "cert_file": "own.pem", "key_file": "own.key"}
    assert read(tmp_path, coordinators | {"tls": files}).tls.cert_file == "own.pem"
