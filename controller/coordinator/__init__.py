"""Coordinators behind ``controller.core.ports``: Motor's HTTP interface, CoordinatorService, and what feeds them."""
