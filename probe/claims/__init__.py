"""The article's claims, each measured by us: a rule laid down before the number, and two cases that watch it."""
