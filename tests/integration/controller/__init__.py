"""The Controller's adapters over real connections, in one process."""
