"""The article's claims, each measured by us: a rule declared before the number, and two cases that watch the measure."""
