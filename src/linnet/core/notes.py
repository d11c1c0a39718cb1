"""What a person should know of, though it is no error."""

import logging
import sys
from functools import cache

from linnet.core.text import one_line, printable

LOG = logging.getLogger("linnet")
"""Where nobody has set up Python's logging, it prints to the standard error."""


@cache
def note(line: str) -> None:
    """Log a line, once: a folder that was healed, a file without a checksum."""
    LOG.warning("note: %s", one_line(line))


def tell(line: str) -> None:
    """Print a line to the standard error: the standard output is for figures and text."""
    print(printable(line), file=sys.stderr, flush=True)
