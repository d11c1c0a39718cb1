import os
from pathlib import Path

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
os.environ["COLUMNS"] = "100"  # of the terminal that commands print for, unless a test has another


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts: `$LINNET_DATA`, else `../shared/data` beside the project; skips where there is none."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("LINNET_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set LINNET_DATA)")
    return folder
