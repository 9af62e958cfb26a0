"""The contract between the daemons of motor-ft: messages (v1), vocabulary (model) and the way on the wire (wire)."""
