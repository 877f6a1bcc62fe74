"""How a team learns: the protocol of an algorithm, COMA, and what algorithms share."""
