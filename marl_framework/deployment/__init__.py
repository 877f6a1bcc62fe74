"""Plans flights in the field and writes belief maps, tracks and autopilot missions."""
