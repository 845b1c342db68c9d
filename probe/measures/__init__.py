"""Measures: captures in, observations out; pure, one file a family."""
