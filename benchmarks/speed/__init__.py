"""How fast missions are flown, observed and learned from."""
