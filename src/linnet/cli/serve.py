"""`linnet serve`: models behind OpenAI's interface, with states that clients can save, fork and rewind."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import note
from linnet.cli.layer_options import DefaultCachePolicy
from linnet.cli.options import MachineOptions, option, with_option_groups
from linnet.core.errors import UserError

USUAL = ("--host", "--port", "--api-key", "--max-batch", "--max-queue", "--max-state", "--timeout", "--precision")
"""The options that the short help shows."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@with_option_groups
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders or folders of training runs; NAME=FOLDER names one."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen at; the default is this machine alone.")] = LOOPBACK[
        0
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8080,
    api_key: Annotated[
        list[str] | None, option("KEY", "Accept requests with this key alone (repeatable); sessions belong to a key.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Streams of a model that run together.")] = 16,
    max_queue: Annotated[int, typer.Option(min=0, max=65536, help="Further streams that wait; others get 429.")] = 64,
    max_state: Annotated[
        str, option("BYTES", "Memory of stored states: half for sessions, half for the prompts of each model.")
    ] = "1GiB",
    max_memory: Annotated[
        str | None, option("BYTES", "Memory of all weights; models that are not in use are unloaded for others.")
    ] = None,
    max_body: Annotated[str, option("BYTES", "The largest request; larger ones get 413.")] = "8MiB",
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds for one request.")] = 600.0,
    allow_host: Annotated[
        list[str] | None,
        option("NAME", "Accept this Host header too (repeatable); on a loopback address its names are accepted."),
    ] = None,
    state_dir: Annotated[Path | None, option("DIR", "Where sessions are saved; without it none can be.")] = None,
    cache_policy: DefaultCachePolicy = None,
    *,
    machine: MachineOptions,
) -> None:
    """Serve models to any client of OpenAI's interface, and a page to look at them.

    Example: linnet serve runs/stories

    The page is at the address itself; the interface is below /v1 (completions, chat/completions, responses, embeddings,
    models, sessions), beside /tokenize, /health and /metrics. A model is loaded when it is first asked
    for. SIGTERM and Ctrl-C finish what runs, then close; a second one closes at once.

    Requests wait in a queue of --max-queue streams. Several models share one server; each has its own engine, which
    decodes all its streams together.

    --cache-policy holds for requests that name none (docs/inference.md); a model without that policy keeps everything.

    Example: linnet serve runs/ted small=runs/attention --port 9000 --api-key secret --state-dir sessions
    """
    try:
        from linnet.serve.app import Server, Settings
        from linnet.serve.process import run
    except ImportError as error:
        problem = f"serve needs {error.name}: pip install 'linnet[serve]'"
        raise UserError(problem) from None
    from linnet.core.units import read_quantity
    from linnet.serve.host import Hosts, Limits

    machine.set_up()
    limits = Limits(
        max_batch,
        max_queue,
        int(read_quantity(max_state, "bytes", "--max-state")),
        None if max_memory is None else int(read_quantity(max_memory, "bytes", "--max-memory")),
        timeout,
        int(read_quantity(max_body, "bytes", "--max-body")),
        machine.device,
        machine.precision,
        cache_policy or "full",
    )
    own_names = (*LOOPBACK, "[::1]") if host in LOOPBACK else ()
    names = (*own_names, *(allow_host or (() if own_names else ("*",))))
    if host not in LOOPBACK and not api_key:
        note(f"--host {host}: anybody who reaches this address can use the models; --api-key KEY asks for a key")
    if wrong := next((name for name in names if "*" in name.removeprefix("*.") and name != "*"), None):
        raise UserError(
            f"--allow-host {wrong}: expected a name such as models.example.org, *.example.org, or * for all"
        )
    server = Server(Hosts(_named(models), limits), Settings(tuple(api_key or ()), tuple(names), state_dir))
    run(server, host, port)


def _named(models: list[str]) -> dict[str, str]:
    """Return the folders of models by name: the name that was typed, or the folder's."""
    named: dict[str, str] = {}
    for model in models:
        name, is_named, folder = model.partition("=")
        if not is_named:
            folder, name = model, Path(model).resolve().name
        if name in named:
            raise UserError(f"{model}: two models are called {name}; expected NAME={folder} with another name")
        named[name] = folder
    return named
