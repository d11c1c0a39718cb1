"""The page's modules outside of a page, by node; skips where there is none."""

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

Script = Callable[[str, Any], Any]


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Runs JavaScript beside the page's modules, with `given` as plain data: what it returns."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH")
    folder = tmp_path_factory.mktemp("modules")
    for module in Path(str(files("linnet.interop.web") / "static")).glob("*.js"):
        shutil.copyfile(module, folder / module.name)
    (folder / "package.json").write_text('{"type": "module"}')

    def run(body: str, given: Any) -> Any:
        (folder / "test.mjs").write_text(
            "import { readFileSync } from 'node:fs';\nconst given = JSON.parse(readFileSync(0));\n"
            f"const found = await (async () => {{ {body} }})();\nconsole.log(JSON.stringify(found));\n"
        )
        done = subprocess.run(
            [node, "test.mjs"], check=False, cwd=folder, input=json.dumps(given), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
