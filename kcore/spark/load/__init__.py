"""Load tests: many tasks write or read at the same time, and count what they did in one window."""
