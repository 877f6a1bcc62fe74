"""How a team learns: the protocol of an algorithm, those that come with the library, and what they share."""
