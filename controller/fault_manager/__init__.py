"""Gathers evidence, decides, and runs at most one strategy per instance: one actor for each (RFC section 2)."""
