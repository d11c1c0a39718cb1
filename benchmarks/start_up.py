"""What a command costs before it works: `generate` of two tokens and `train` of one step against `import torch` alone.

`ted-tinystories` over the built-in stories, every process started anew. Also what a compiled step in the cache costs a
text that is too short to gain from it: `generate` of so many tokens that it is loaded and compared, against
`--no-compile`. `python benchmarks/start_up.py`
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from harness import contest, gate, report, threads_from_command_line
from linnet.data.prepare import prepare_texts
from linnet.inference.compiled_step import TIMED_TOKENS
from linnet.inference.language_model import load
from linnet.inference.readers import finish_captured_steps
from linnet.inference.step_packages import BUILDS
from linnet.stories import texts

LIMITS_S = {"generate": 0.4, "train": 1.5}
"""Over torch's import; the processor's speed decides it too."""

SHORT_TOKENS = 2 * TIMED_TOKENS + 2
"""So many that a compiled step is loaded behind the first ordinary ones, and compared with them."""

PACKAGE_LIMIT_S = 0.1
"""Over ordinary steps."""

SETTINGS = (
    "steps=1", "batch_size=1", "context_length=64", "evaluate.tokens=64", f"threads={torch.get_num_threads()}",
)  # fmt: skip


def python(*arguments: str) -> str:
    """The standard output of a fresh process, which finds compiled sources from the second one on, as users' do."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def train(folder: Path, run: Path) -> dict[str, Any]:
    """One step; what `--json` says of it."""
    shutil.rmtree(run, ignore_errors=True)
    settings = [part for setting in SETTINGS for part in ("--set", f"training.{setting}")]
    named = ["--model", "ted-tinystories", "--data", str(folder / "data"), "--out", str(run)]
    summary: dict[str, Any] = json.loads(python("-m", "linnet", "train", *named, *settings, "--json"))
    return summary


def generate(run: Path, tokens: int = 2, *options: str) -> str:
    """Greedy tokens behind a prompt."""
    limit = ("--max-tokens", str(tokens))
    return python("-m", "linnet", "generate", str(run), "--prompt", "Once", *limit, "--temperature", "0", *options)


def compile_step(run: Path) -> None:
    """Put the compiled step of the model into the cache."""
    model = load(run)
    BUILDS.enabled = True
    model.generate("Once", SHORT_TOKENS, temperature=0.0)
    finish_captured_steps(model.decoder)


def package_cost(run: Path, runs: int) -> dict[str, Any]:
    """Seconds that a short text takes longer with a compiled step in the cache; the texts are the same."""
    compile_step(run)
    with_package, ordinary = lambda: generate(run, SHORT_TOKENS), lambda: generate(run, SHORT_TOKENS, "--no-compile")
    gate("package", with_package() == ordinary(), "the same text with and without the compiled step")
    found = contest(with_package, ordinary, runs)
    over_s = statistics.median(s - o for s, o in zip(found.ours_s, found.other_s, strict=True))
    limit = {"limit_s": PACKAGE_LIMIT_S, "within_limit": over_s <= PACKAGE_LIMIT_S}
    return {"tokens": SHORT_TOKENS, "seconds_over_ordinary": round(over_s, 3), **limit, **found.summary()}


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    results: dict[str, Any] = {"shape": "ted-tinystories; two greedy tokens; one step of 64", "against": "import torch"}
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # without a compiled step, to begin with
        stories = (list(texts(100, 0, split)) for split in ("train", "validation"))
        prepare_texts(*stories, folder / "data", "char")
        summary = train(folder, folder / "run")
        gate("train", summary["finished"] and summary["step"] == 1, f"step {summary['step']} of {summary['steps']}")
        text = load(folder / "run").generate("Once", 2, temperature=0.0)
        gate("generate", generate(folder / "run") == f"Once{text}\n", f"continues with {text!r} in this process too")
        commands = {"generate": lambda: generate(folder / "run"), "train": lambda: train(folder, folder / "again")}
        for verb, run in commands.items():
            found = contest(run, lambda: python("-c", "import torch"), runs)
            over_s = statistics.median(s - o for s, o in zip(found.ours_s, found.other_s, strict=True))
            results[verb] = {
                "seconds_over_import": round(over_s, 3),
                "limit_s": LIMITS_S[verb],
                "within_limit": over_s <= LIMITS_S[verb],
                **found.summary(),
            }
        results["compiled step in the cache"] = package_cost(folder / "run", runs)
    report("start_up", results)


if __name__ == "__main__":
    main()
