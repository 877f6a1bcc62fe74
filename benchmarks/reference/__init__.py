"""Whether the library computes what a plain implementation of the mission computes."""
