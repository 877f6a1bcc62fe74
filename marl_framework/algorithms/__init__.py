"""How a team learns: the protocol of an algorithm, those that come along, and what they share."""
