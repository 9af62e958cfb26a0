"""Hardware faults of MindCluster, as a reporter on the FaultReport stream."""
