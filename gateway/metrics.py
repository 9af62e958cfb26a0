"""What the gateway counts."""

from prometheus_client import CollectorRegistry, Counter


class EngineMetrics:
    """Traffic with engines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reads = Counter(
            "motor_ft_engine_reads",
            "Readings of engines; problem is empty for those that worked.",
            ["problem"],
            registry=registry,
        )
        self.applies = Counter(
            "motor_ft_engine_applies",
            "Instructions to engines by outcome.",
            ["instruction", "outcome"],
            registry=registry,
        )


class RestMetrics:
    """Traffic of the REST routes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "motor_ft_rest_requests",
            "Requests by route and HTTP status; method and route are empty where no route fits.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.unfenced = Counter(
            "motor_ft_unfenced_commands",
            "Commands without epoch and generation.",
            ["path"],
            registry=registry,
        )
