"""One part at a time, mirroring the source tree."""
