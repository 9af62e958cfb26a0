"""The gateway's gRPC side: EngineService, and what its interceptors ask."""
