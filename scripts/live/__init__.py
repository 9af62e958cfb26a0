"""The main job on one machine: start everything, show it, break a rank, watch the others serve again."""
