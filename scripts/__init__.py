"""The commands of this project; ``live`` is behind ``scripts/run``."""
