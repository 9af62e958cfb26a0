"""The NodeManager: owns one pod, its engine processes, guard lease and at-most-once apply."""
