"""What must hold, by what it is seen at: engines, commands, evidence, records, the serving view, and the end."""
