"""The hand-written half of the contract: errors, channel, server, tasks, logging."""
