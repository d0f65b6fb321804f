"""Errors that are the user's to fix: each names the file or key, the value, and the way out.

The command line prints them as one message without a traceback and exits with their code.
"""


class RalsegError(Exception):
    """Base of all errors that ralseg raises on purpose."""

    exit_code = 1


class ConfigError(RalsegError, ValueError):
    """A configuration key has a value that cannot work."""

    exit_code = 2


class DataError(RalsegError):
    """A file of the data set is missing, damaged, or does not say what it should."""

    exit_code = 3


class HiddenLabelError(RalsegError):
    """Code asked for labels that only an oracle may reveal."""
