"""Look at how a pretrained language model reads an ambiguous word."""
