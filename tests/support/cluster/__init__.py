"""A whole system as real processes on this machine: Controller, pods, engines, Coordinator; and its evidence."""

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.deployment import Deployment
from tests.support.cluster.evidence import Evidence
from tests.support.cluster.shape import SCALED, Shape, even_pods

__all__ = ["SCALED", "Cluster", "Deployment", "Evidence", "Shape", "even_pods"]
