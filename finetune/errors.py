"""The mistakes a user can mend, of this half: one line that says what was given, where, and what is allowed."""

from probe import CijingError


class ConfigError(CijingError):
    """A configuration names what does not exist, or asks for what does not go together."""


class DataError(CijingError):
    """A corpus, or a line of it, cannot be read or used."""


class PairError(CijingError):
    """A pairs file is not usable, or its pairs cannot be met in the texts."""


class TrainingError(CijingError):
    """A training run cannot go on: its loss is no number, its disk is full, its checkpoint is damaged."""


class BusyError(TrainingError):
    """Another process is at work in a folder."""


class RetrievalError(CijingError):
    """Documents, an index or a search cannot be had: a source is not there, or an index is damaged."""
