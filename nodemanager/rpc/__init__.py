"""What a NodeManager serves: parse, call, reply."""
