"""Coordination state: topics, configs, ids."""
