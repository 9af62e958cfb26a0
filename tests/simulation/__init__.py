"""Deterministic simulation: the real daemons in one loop of virtual time, over a network, disks and engines in memory.

A seed decides everything; the same seed gives the same history in every process. Read ``scenario.py`` for what can
happen, ``oracle.py`` for what must hold, ``world.py`` for how it is put together.
"""
