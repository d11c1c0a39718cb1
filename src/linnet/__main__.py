"""`python -m linnet`: the command line."""

import sys

from linnet.cli.main import main

sys.exit(main())
