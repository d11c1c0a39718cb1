"""`python tests/campaigns`: all campaigns, or `--only kills --case "..."` one input of one."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "docs")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.dont_write_bytecode = True

from campaigns.command_line import main  # noqa: E402 - the paths come first

sys.exit(main(sys.argv[1:]))
