"""The NodeManager's pure core: data and decisions, no I/O and no clock."""
