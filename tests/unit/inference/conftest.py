"""Lets the tests of this folder import `small_models`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
