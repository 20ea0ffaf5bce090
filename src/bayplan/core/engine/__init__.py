"""The engine: events in, effects out. No clock, no socket, no log, no randomness."""
