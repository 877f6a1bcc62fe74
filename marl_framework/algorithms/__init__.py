"""Multi-agent algorithms: the protocol, the built-in algorithms and their shared code."""
