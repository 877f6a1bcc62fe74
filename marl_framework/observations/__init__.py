"""What the networks see: maps built from a mission's state."""
