"""A stand-in for Slurm's `sbatch --wait`, which carries the array out on this machine, one task after another."""

import os
import stat
import sys
from pathlib import Path

import pytest

SBATCH = """#!{python}
import os, re, subprocess, sys
text = open(sys.argv[-1]).read()
last = int(re.search(r"#SBATCH --array=0-(\\d+)", text)[1])
open(os.environ["SBATCH_LOG"], "a").write(" ".join(sys.argv[1:-1]) + f" {{last + 1}} jobs\\n")
for index in range(last + 1):
    if str(index) in os.environ.get("SBATCH_LOST", ""):
        continue
    log = re.search(r"--output=(\\S+)", text)[1].replace("%a", str(index))
    with open(log, "w") as handle:
        subprocess.run(["bash", sys.argv[-1]], env={{**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}}, stderr=handle)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stub on the PATH; the file where it logs. SBATCH_LOST has the numbers of tasks that it forgets."""
    stub = folder / "bin" / "sbatch"
    stub.parent.mkdir()
    stub.write_text(SBATCH.format(python=sys.executable))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SBATCH_LOG", str(folder / "sbatch.log"))
    return folder / "sbatch.log"
