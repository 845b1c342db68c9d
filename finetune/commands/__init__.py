"""The commands: thin, each loads what it needs when it is called."""
