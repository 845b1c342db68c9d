"""The mistakes a user can mend: each message is one line that says what was given, where, and what is allowed."""


class CijingError(Exception):
    """Base of all errors that the command line prints as one line, with exit code 2."""


class ModelError(CijingError):
    """A model cannot be found, read, or used for what was asked."""


class CasesError(CijingError):
    """A cases file, or a case in it, is not usable."""


class PromptError(CijingError):
    """A file of prompts, or a prompt in it, is not usable."""


class SpanError(CijingError):
    """A span of characters cannot be mapped to tokens."""


class TapError(CijingError):
    """Exact attention rows, or an edit of them, cannot be had from this model."""


class BudgetError(CijingError):
    """A capture would need more memory than it may use."""


class OutputError(CijingError):
    """An output folder or file cannot be written."""


class FigureError(CijingError):
    """A figure cannot be drawn, for example because no font has its characters."""
