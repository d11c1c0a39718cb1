"""`linnet evaluate --protocol`: a paper's measurements, on any models."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.evaluate_options import TaskOptions, refuse
from linnet.cli.evaluate_report import AskedReport
from linnet.cli.options import option
from linnet.present.show import write_json, write_parts

TAKEN = ("models", "protocol", "files", "limit", "report", "device", "as_json")
"""All else is what the protocol says."""

ProtocolFile = Annotated[
    Path | None,
    option(
        "FILE.yaml", "Repeat a paper's tables as a file describes them, with the questions of --files: experiments/*."
    ),
]


def follow(
    ctx: typer.Context,
    models: list[Path],
    protocol: Path,
    tasks: TaskOptions,
    page: AskedReport,
    device: str,
    as_json: bool,
) -> None:
    """Measure and print."""
    refuse(ctx, [name for name in ctx.params if name not in TAKEN], "the protocol says how is measured")
    from linnet.experiments.protocol.run import run_protocol
    from linnet.experiments.protocol.spec import Protocol
    from linnet.interop.contestants import contestants

    found = run_protocol(Protocol.load(protocol), models, contestants, tasks.place, tasks.limit, device)
    page.write_protocol(found)
    if as_json:
        write_json(found.figures())
    else:
        write_parts(*found.tables())
