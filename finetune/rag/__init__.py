"""Passages for a model: documents read, cut and searched, put before a question, and whether the model used them."""
