"""What the Controller serves: one servicer per service, parse, call, reply."""
