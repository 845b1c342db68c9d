"""Attention step by step on a real model: each step by its formula, beside the model's own number for it."""
