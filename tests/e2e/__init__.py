"""Real processes: the acceptance matrix, with an evidence bundle each."""
