"""Experiments: what needs model runs of its own, such as a cut edge."""
