"""Ways to bring an instance back; each runs effects through ``controller.core.ports``."""
