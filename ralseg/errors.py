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


class PoolExhausted(ConfigError):
    """A budget asks for more regions than there are."""

    exit_code = 4


class NotFiniteError(RalsegError):
    """A loss, a reward or a score is NaN or infinite: going on would ruin the policy silently.

    Args:
        message: What is not finite, and where.
        context: The figures of the step, for the run's folder.
    """

    def __init__(self, message: str, context: dict[str, object]) -> None:
        super().__init__(message)
        self.context = context
        self.saved_to: str | None = None

    def __reduce__(self) -> tuple[type, tuple[str, dict[str, object]]]:
        """For other processes."""
        return type(self), (str(self.args[0]), self.context)

    def __str__(self) -> str:
        """The message, and where the context is."""
        where = f"; the step's figures are in {self.saved_to}" if self.saved_to else ""
        return super().__str__() + where


class HiddenLabelError(RalsegError):
    """Code asked for labels that only an oracle may reveal."""
