"""Teach a model a domain's sense of a word, inject passages, and compare; builds on probe's public names only."""
