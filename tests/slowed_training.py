"""`linnet ARGUMENTS` whose training steps take longer from some step on; run as a program.

`python slowed_training.py STEPS SECONDS ARGUMENTS...`: after so many steps of this process each takes so many seconds
more. A test that stops or kills a run in its midst so has time to, however busy the machine is.
"""

import itertools
import sys
import time

from linnet.cli.main import main
from linnet.training.trainer import Trainer


def slow_down(steps: int, seconds: float) -> None:
    plain, taken = Trainer._step, itertools.count(1)

    def step(trainer: Trainer) -> bool:
        going_on = plain(trainer)
        if next(taken) > steps:
            time.sleep(seconds)
        return going_on

    Trainer._step = step


if __name__ == "__main__":
    slow_down(int(sys.argv[1]), float(sys.argv[2]))
    del sys.argv[1:3]
    sys.exit(main())
