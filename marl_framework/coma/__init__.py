"""The algorithm: networks, policy, returns and losses of COMA."""
