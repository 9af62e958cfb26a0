"""What MindCluster's payloads mean, free of transport: parsers, and the state of all sources together."""
