"""Pure vocabulary that every part shares: no I/O, no clocks, no protobuf."""
