"""`linnet runs`: list runs, compare two, show one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from linnet.cli.console import note
from linnet.cli.options import AsJson
from linnet.present import numbers
from linnet.present.show import write, write_json, write_parts
from linnet.present.table import MISSING, Table

if TYPE_CHECKING:
    from linnet.training.run_list import RunInfo

CURVE_HEIGHT = 12
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


class ListsByItself(TyperGroup):
    """A group whose arguments are those of `list` if they do not start with a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_command = args and (args[0] in (*self.commands, *ctx.help_option_names, "--help-all"))
        return super().parse_args(ctx, args if has_command else ["list", *args])


runs = typer.Typer(
    cls=ListsByItself,
    add_completion=False,
    rich_markup_mode=None,
    help="""List runs, compare two, show one. `linnet runs DIR` is `linnet runs list DIR`.

    Example: linnet runs

    Example: linnet runs runs --json
    """,
)


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs below it.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """List all runs below DIR (default: here): model, size, steps, tokens, bits per byte, time, state.

    Example: linnet runs list runs

    States: finished; running: another process trains there; stopped: `linnet train --out RUN` continues it; diverged:
    its loss was not finite, and its command tries again; damaged: its files cannot be read. Bits per byte are those of
    held-out text, causal, at the latest evaluation; time is that of the steps.
    """
    from linnet.training.run_list import find_runs, read_run_info

    found = [read_run_info(path) for path in find_runs(folder)]
    _note_problems(found)
    if as_json:
        write_json([run.to_dict() for run in found])
        return
    if not found:
        write(f"{folder}: no runs\n")
        return
    columns = ("run", "model", "parameters", "steps", "tokens", "bits/byte", "time", "state")
    write_parts(Table("", columns, [_row(run, folder) for run in found]))


def _note_problems(found: list["RunInfo"]) -> None:
    for run in found:
        if run.problem:
            note(f"{run.path}: {run.problem}")


def _row(run: "RunInfo", folder: Path) -> tuple[str, ...]:
    path = Path(run.path)
    below = path.relative_to(folder) if path.is_relative_to(folder) and path != folder else path
    at_end = run.step == run.steps
    return (
        str(below),
        run.model or "",
        _cell(run.parameters, numbers.metric),
        "" if run.step is None else f"{run.step:,}" + ("" if at_end else f" of {run.steps or 0:,}"),
        _cell(run.tokens, numbers.metric),
        _cell(run.bits_per_byte, numbers.bits),
        _cell(run.seconds, numbers.duration),
        run.state,
    )


def _cell(value: Any, write_value: Any) -> str:
    return "" if value is None else str(write_value(value))


@runs.command()
def diff(one: Run, other: Run, as_json: AsJson = False) -> None:
    """Print the fields in which two runs differ, and their figures side by side.

    Example: linnet runs diff runs/ted runs/pldr

    Example: linnet runs diff runs/pldr runs/other --json
    """
    from linnet.training.run_list import read_run_info
    from linnet.training.runs import differences

    fields, found = differences(one, other), [read_run_info(path) for path in (one, other)]
    _note_problems(found)
    figures = [run.to_dict() for run in found]
    if as_json:
        plain = {field: list(values) for field, values in fields.items()}
        write_json({"runs": [str(one), str(other)], "fields": plain, "figures": figures})
        return
    names = [str(one), str(other)]
    rows = [
        (field, *(MISSING if value is None else str(value) for value in values)) for field, values in fields.items()
    ]
    if rows:
        write_parts(Table("Fields that differ", ("field", *names), rows, text=True))
    else:
        write("The same in every field.\n")
    shown = [name for name in figures[0] if name not in ("path", "problem")]
    write("\n")
    sides = [(name.replace("_", " "), *(_figure(name, each[name]) for each in figures)) for name in shown]
    write_parts(Table("Figures", ("", *names), sides))


def _figure(name: str, value: Any) -> str:
    if value is None:
        return MISSING
    if name == "seconds":
        return numbers.duration(value)
    if name == "bits_per_byte":
        return f"{value:.4f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


@runs.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """Show a run: its figures, and the curves of loss, learning rate and gradient norm in the terminal.

    Example: linnet runs show runs/ted

    Example: linnet runs show runs/ted --json
    """
    from linnet.training.objective_figures import held_out_rows, is_judged
    from linnet.training.run_folder import RunFolder
    from linnet.training.run_list import read_run_info
    from linnet.training.runs import check_run, read_summary

    check_run(run)
    as_listed = read_run_info(run)
    _note_problems([as_listed])
    folder, found, summary = RunFolder(run), as_listed.to_dict(), read_summary(run)
    lines = folder.metrics.read(folder.expected_steps(as_listed.step or 0))
    if as_json:
        names = ("best", "preferences", "rollouts", "extensions", "spikes", "embedding_from", "sources", "machine")
        recorded = {name: summary[name] for name in names if summary.get(name)}
        write_json({**found, **recorded, "lines": lines})
        return
    rows = [(name.replace("_", " "), _figure(name, value)) for name, value in found.items() if value is not None]
    rows += held_out_rows(summary or next((line for line in reversed(lines) if is_judged(line)), {}))
    rows += [("spikes", str(summary["spikes"]["count"]))] if summary.get("spikes") else []
    rows += [("extended", f"at step {each['step']:,} to {each['steps']:,}") for each in summary.get("extensions") or []]
    if vectors := summary.get("embedding_from"):
        count = f"{vectors['tokens_found']:,} of {vectors['tokens']:,} tokens"
        rows.append(("word vectors", f"of {vectors['file']}, for {count}"))
    if sources := summary.get("sources"):
        from linnet.data.mixed_batches import SourceShare

        rows += [("source", SourceShare(**each).describe()) for each in sources]
    write_parts(Table("", ("", ""), rows, text=True))
    drawn = [line for line in lines if {"bits_per_byte", "lr", "gradient_norm"} <= line.keys()]
    if drawn:
        _print_curves(drawn)
    else:
        write("\nno lines of figures: nothing to draw yet\n")


def _print_curves(lines: list[dict[str, Any]]) -> None:
    import sys

    from linnet.present.show import TerminalCurve, curve_lines, terminal_width
    from linnet.training.objective_figures import objective_curve

    width, styled = min(100, terminal_width()), sys.stdout.isatty()
    steps = [line["step"] for line in lines]
    evaluated = [line for line in lines if "bits_per_byte" in (line.get("validation") or {})]
    validation = [line["validation"]["bits_per_byte"] for line in evaluated]
    losses = [
        TerminalCurve("training", steps, [line["bits_per_byte"] for line in lines]),
        TerminalCurve("held out, causal", [line["step"] for line in evaluated], validation),
    ]
    plots = [("loss, bits per byte", losses, CURVE_HEIGHT, True)]
    if found := objective_curve(lines):
        trained = TerminalCurve("training", found.steps, found.trained)
        held_out = TerminalCurve("held out", found.held_out_steps, found.held_out)
        plots.append((found.title, [trained, held_out], CURVE_HEIGHT // 2, False))
    for name, title in (("lr", "learning rate"), ("gradient_norm", "gradient norm")):
        plots.append((title, [TerminalCurve("", steps, [line[name] for line in lines])], CURVE_HEIGHT // 3, False))
    for title, curves, height, logarithmic in plots:
        text = "\n".join(curve_lines(title, curves, width, height, logarithmic, styled))
        typer.echo(f"\n{text}".encode(errors="surrogateescape"))
