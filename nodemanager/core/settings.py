"""What the Controller tells its NodeManagers about pace (recovery.md section 9); these values hold until it does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Seconds, except for the threshold: consecutive readings without a connection that make a rank unreachable."""

    heartbeat_interval_sec: float = 3.0
    heartbeat_ttl_sec: float = 10.0
    poll_interval_sec: float = 1.0
    unreachable_threshold: int = 1
    engine_timeout_sec: float = 4.0
