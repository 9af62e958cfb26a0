"""Durable records behind ``controller.core.ports.Store``: in memory, or in one SQLite file (the embedded default)."""
