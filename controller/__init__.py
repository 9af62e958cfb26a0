"""The Controller: gathers evidence, decides, runs the recovery transaction, owns the serving view."""
