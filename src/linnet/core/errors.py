"""The one error that a user can cause."""


class UserError(ValueError):
    """A mistake in what the user gave: one line that names file, field and value, and what would be accepted.

    The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
