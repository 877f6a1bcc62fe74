"""Speed of flying, observing and learning."""
