"""`linnet demo`: train three tiny models on the same stories and compare them."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import interruptions_reported, invocation, note
from linnet.cli.options import AsJson, Device, option
from linnet.present.show import write, write_json, write_parts


def demo(
    out: Annotated[Path, option("DIR", "The folder to make, or one to continue.")] = Path("demo"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each model. Default: those of the recipes.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first weights, the order of the batches, and the sampled stories.")
    ] = 0,
    stories: Annotated[
        int | None, typer.Option(min=40, help="Stories to train on. Default: the number of the recipes.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="The beginning of each sample story; '': none.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train three tiny models on the same stories and compare them, in minutes.

    Example: linnet demo

    Builds a corpus of short stories and trains an attention model, a PLDR-LLM and a TED of the same size on the same
    tokens. Prints the cost and the quality of each model and a story by it. DIR/report.html shows everything on one
    page, with the learning curves. Ctrl-C saves and stops; the same command continues.

    Example: linnet demo --out tried --steps 20 --stories 200 --prompt "One day, Tom"
    """
    from linnet.core.system import keep_freed_memory
    from linnet.experiments.demo import PROMPT, Options, run_demo
    from linnet.present.page import PAGE

    options = Options(
        out=out,
        steps=steps,
        seed=seed,
        stories=stories,
        prompt=PROMPT if prompt is None else prompt,
        device=device,
        command=_linnet_command(),
        invocation=invocation(),
    )
    keep_freed_memory()
    with interruptions_reported():
        figures = run_demo(options, note)
    if as_json:
        write_json({**figures.to_dict(), "report": str(out / PAGE)})
    else:
        write_parts(*figures.tables())
        write(f"\nreport: {out / PAGE}\n")


def _linnet_command() -> str:
    """Return how this command can be called from here: its name if a shell finds it, else its path."""
    import shlex
    import shutil
    import sys

    if shutil.which("linnet"):
        return "linnet"
    script = Path(sys.executable).with_name("linnet")
    if script.is_relative_to(Path.cwd()):
        script = script.relative_to(Path.cwd())
    return shlex.quote(str(script))
