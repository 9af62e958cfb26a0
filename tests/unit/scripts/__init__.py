"""The parts of scripts that judge."""
