"""Engines behind one interface: a dialect each, HTTP at the edge, and the hub that reads and commands them."""
