"""The commands, one function each; each loads what it needs itself."""
