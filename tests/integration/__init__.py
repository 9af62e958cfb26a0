"""Real gRPC and HTTP between parts in one process."""
