"""Models built from the same blocks."""
