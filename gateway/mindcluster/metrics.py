"""What the MindCluster adapter counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class MindClusterMetrics:
    """Its stream to the Controller, its sources and the faults that hold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "motor_ft_link_connected", "1 while a Controller has answered Hello on the open stream.", registry=registry
        )
        self.reports = Counter("motor_ft_reports", "Reports sent, repeats included.", ["kind"], registry=registry)
        self.rejected = Counter("motor_ft_reports_rejected", "Reports refused.", ["reason"], registry=registry)
        self.faults = Gauge("motor_ft_hardware_faults", "Hardware faults that hold.", ["level"], registry=registry)
        self.working = Gauge(
            "motor_ft_hardware_source_working",
            "1 while a source of hardware faults works.",
            ["source"],
            registry=registry,
        )
        self.doubted = Gauge(
            "motor_ft_hardware_doubted_places",
            "Nodes of working sources that are not to be believed.",
            registry=registry,
        )
