"""Adapters of the Controller, without a peer."""
