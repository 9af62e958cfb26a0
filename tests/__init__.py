"""Tests: unit, contract, integration, e2e, and the fakes they share in support."""
