"""Generated code of the part of ClusterD's fault service that the gateway uses; a foreign contract."""
