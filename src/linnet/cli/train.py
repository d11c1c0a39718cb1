"""`linnet train`: a model and a data folder to a run folder."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli.console import invocation, note
from linnet.cli.options import AsJson, option
from linnet.cli.signals import exit_code
from linnet.core.errors import UserError
from linnet.core.system import refuse_distributed
from linnet.present import numbers
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.training.distributed import Processes
    from linnet.training.run import RunResult
    from linnet.training.spec import RunSpec


def train(
    out: Annotated[Path, option("RUN", "The run folder: new, or one to go on with.")],
    model: Annotated[
        str | None,
        option(
            "PRESET|FILE|MODEL",
            "A preset, the file of a description, or a model folder, of which only the description is taken.",
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="A model folder, or that of a run, to begin with the weights of; the data's tokenizer has to be its.",
        ),
    ] = None,
    data: Annotated[Path | None, option("DIR", "A folder made by `linnet prepare`.")] = None,
    pairs: Annotated[
        Path | None,
        option(
            "FILE.jsonl",
            'In the place of --data: lines {"input": "...", "target": "..."}; the loss is that of the targets alone.',
        ),
    ] = None,
    config: Annotated[Path | None, option("FILE", "YAML with sections model, data, training.")] = None,
    recipe: Annotated[
        str | None,
        option(
            "auto|NAME|FILE",
            "auto fits optimizer, batch, learning rate and schedule to model and tokens; a name: how a published model "
            "was trained. --config and --set change single fields.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field (repeatable).")
    ] = None,
    verify_resume: Annotated[
        bool,
        typer.Option("--verify-resume", help="Train nothing in RUN: show that a killed run ends the same."),
    ] = False,
    verify_steps: Annotated[
        int | None, option("N", "Of --verify-resume: so many of the first steps; 20.", min=4, max=100_000)
    ] = None,
    sweep: Annotated[
        str | None,
        option(
            "FIELD[=A,B,...]", "Train once for each value of a field, and say which was best; lr alone: about its peak."
        ),
    ] = None,
    sweep_steps: Annotated[
        int | None, option("N", "Of --sweep: so many steps for each value; all if not given.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, or go on with an interrupted run.

    RUN gets config.yaml (everything resolved), metrics.jsonl, curves.png, checkpoints, and a model folder with the
    weights of the last step. Ctrl-C and SIGTERM save and stop (exit codes 130 and 143); the same command, or --out RUN
    alone, goes on, and ends bit for bit where an uninterrupted run ends (same machine, CPU). --out RUN --set
    training.steps=N, with more steps, prolongs a run, a finished one too: the schedule is then that of N steps.

    --verify-resume shows that on the run as it is described, or as RUN holds it: its first steps are trained in a
    folder beside RUN, once as they are and once killed (SIGKILL) at a random moment and resumed, also with its newest
    checkpoint truncated; weights, moments and figures are compared bit for bit. The exit code is 1 where one differs.

    --sweep lr trains the run once for each of a quarter, half, one, two and four times its learning rate, --sweep
    batch_size=4,8,16 for values of another number of training, in RUN/lr-0.001 and so on; then come a table and a
    picture of held-out bits per byte, the flags that train with the best value, and a note where that is the lowest or
    highest. Each is trained on as many tokens: all of the run's, or those of --sweep-steps. The same command goes on,
    and trains no value twice; one that diverges is told, and the others go on (exit code 1 where all do).

    Fields for --set, and what they may be where that is no number; docs/training-reference.md says what they mean.
    Every field of the model is one too; --set model.calibration=FILE|identity|random trains a PLDR-LLM with operators
    that are given.

    training.recipe (as --recipe), .steps or .tokens, .batch_size, .gradient_accumulation, .context_length,
      .windows (stream, documents), .document_mask, .seed, .z_loss,
      .embedding_from (a file of word2vec's or GloVe's vectors),
      .precision (auto, float32, bfloat16), .device, .threads, .compile,
      .trackers (tensorboard, wandb)
    training.growth.context_length, .batch_size ([[UNTIL, SIZE], ...])
    training.optimizer.kind (adamw, muon), .lr, .low_lr, .betas, .eps,
      .weight_decay, .weight_decay_on (matrices, all), .cautious_decay
    training.optimizer.muon.lr, .scale (adamw, spectral), .momentum,
      .iterations, .every, .precision (auto, float32, bfloat16)
    training.schedule.kind (cosine, cosine_squared, linear, constant, stable),
      .decay_share, .decay (one_minus_sqrt, linear), .warmup_steps or
      .warmup_share, .start_fraction, .final_fraction
    training.averaging.kind (ema, mean), .decay, .share
    training.clip.by (norm, value, none), .at
    training.dag.a_lm, .a_p, .g
    training.guard.action (skip, rewind), .metric (loss, gradient_norm, either),
      .limit, .window, .max_consecutive
    training.evaluate.every, .tokens, .calibrate_on (train, empty)
    training.checkpoint.every, .keep
    training.log.every
    training.parallel.shard, .checkpointing

    Several processes, on this machine or on many, train one model with `torchrun --nproc-per-node 2 -m linnet train`
    and the same options; training.parallel.shard of them share one copy of the weights.

    --pairs trains an encoder-decoder, a model with prefix: true, or any decoder, on targets that follow from inputs.
    The pairs become a data folder, RUN/pairs, with a tokenizer as large as the model's vocabulary (--from: its own).

    Example: linnet train --model ted-tinystories --recipe ted-tinystories --data data/stories --out runs/ted

    Example: linnet train --model tiny-ted --recipe auto --data data/stories --out runs/auto --set training.tokens=2e6

    Example: linnet train --from runs/ted --data data/letters --out runs/ted-letters --set training.optimizer.lr=1e-4

    Example: linnet train --model tiny-encoder-decoder --pairs pairs.jsonl --out runs/pairs

    Example: linnet train --out runs/ted --set training.steps=40000

    Example: linnet train --out runs/ted --verify-resume

    Example: linnet train --model tiny-ted --data data/stories --out runs/rates --sweep lr --sweep-steps 200

    Example: linnet train --config run.yaml --out runs/small --set model.context_length=256

    Example: linnet train --model pldr-v51-110m-1 --recipe pldr-v51-110m-1 --data data/web --out runs/pldr
    """
    from linnet.core.system import keep_freed_memory
    from linnet.training.distributed import LostProcessError, PeerError, join_processes
    from linnet.training.run_folder import DivergedError

    keep_freed_memory()
    _check_together(verify_resume, verify_steps, sweep, sweep_steps)
    described = (config, model, data, changes or (), recipe, start_from, None, pairs)
    if verify_resume:
        refuse_distributed("--verify-resume")
        _verify(_asked(out, described), out, verify_steps, as_json)
        return
    if sweep is not None:
        from linnet.cli.train_sweep import show_sweep

        refuse_distributed("--sweep")
        show_sweep(sweep, _asked(out, described), out, sweep_steps, as_json)
        return
    try:
        with join_processes() as several:
            result = _carried_out(out, described, several)
    except (DivergedError, LostProcessError) as error:
        note(f"error: {error}")
        raise typer.Exit(1) from None
    except PeerError as elsewhere:
        raise typer.Exit(elsewhere.code) from None
    if several.is_rank0:
        _report(result, as_json)
    if not result.finished:
        raise typer.Exit(exit_code(result.signal))


def _check_together(verify_resume: bool, verify_steps: int | None, sweep: str | None, sweep_steps: int | None) -> None:
    if verify_steps is not None and not verify_resume:
        raise UserError("--verify-steps: belongs to --verify-resume")
    if sweep_steps is not None and sweep is None:
        raise UserError("--sweep-steps: belongs to --sweep")
    if sweep is not None and verify_resume:
        raise UserError("--sweep: does not go with --verify-resume; give one of the two")


def _asked(out: Path, described: tuple[Any, ...], several: "Processes | None" = None) -> "RunSpec":
    """The run; of a file of pairs with its data folder. several: the processes that ask for it; None: this one."""
    from linnet.training.distributed import SINGLE_PROCESS
    from linnet.training.run import prepare_run_pairs, resolve_run_config

    several = several or SINGLE_PROCESS
    run, model, pairs = resolve_run_config(out, *described), described[1], described[-1]
    if pairs is not None:
        several.broadcast_from_rank0(lambda: prepare_run_pairs(run, pairs))
    if several.is_rank0 and model is not None and Path(model).is_dir() and run.start_from is None:
        note(f"note: --model {model}: its description alone, with fresh weights; --from {model} begins with its own")
    return run


def _carried_out(out: Path, described: tuple[Any, ...], several: "Processes") -> "RunResult":
    from linnet.training.reporter import Reporter, terminal_reporter
    from linnet.training.run import train_run

    run = _asked(out, described, several)
    with terminal_reporter() if several.is_rank0 else nullcontext(Reporter()) as reporter:
        return train_run(run, out, reporter, command=invocation())


def _report(result: "RunResult", as_json: bool) -> None:
    if as_json:
        write_json({"run": str(result.folder), "model": str(result.model), **result.summary})
    else:
        _print_table(result)
    if not result.finished:
        step, steps = result.summary["step"], result.summary["steps"]
        note(f"stopped at step {step} of {steps}; saved; the same command goes on")


def _verify(run: "RunSpec", out: Path, steps: int | None, as_json: bool) -> None:
    from linnet.present.table import Table
    from linnet.training.verification import STEPS, verify_resume

    found = verify_resume(run, out, steps or STEPS)
    if as_json:
        write_json(found.to_dict())
    else:
        columns = ("resumed after", "compared", "values", "that differ")
        rows = [(each.case, each.what, f"{each.count:,}", f"{each.differs:,}") for each in found.compared]
        went_on = " and ".join(f"{step} ({case})" for case, step in found.resumed_from.items())
        told = f"{found.steps} steps, killed after step {found.killed_at}, gone on from step {went_on}."
        write_parts(Table("", columns, rows, f"{told} {found.refused}"))
        verdict = "the same to the last bit" if found.same else "not the same: this run does not go on as it was"
        write(f"{verdict}\n")
    if not found.same:
        raise typer.Exit(1)


def _print_table(result: "RunResult") -> None:
    from linnet.present.table import Table

    write_parts(Table("", ("", ""), _rows(result.summary), text=True))
    averaged = "averaged weights until" if result.summary.get("averaging") else "the weights of"
    write(f"model: {result.model} ({averaged} step {result.summary['step']})\n")


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and figures of the final table; what was not measured, or not recorded, is left out."""
    told = _known(summary)
    found, best = _known(told.get("validation", {})), _known(told.get("best", {}))
    return [
        *_row("steps", "{step:,} of {steps:,}", told),
        *_row("tokens", "{tokens:,}", told),
        *_row("parameters", "{parameters:,}", told),
        *_row("time in steps", "{seconds}", told, seconds=numbers.duration),
        *_row("speed", "{tokens_per_s:,.0f} tokens/s, {share_of_peak:.1%} of peak", told),
        *_row("orthogonalizing", "{orthogonalizing_share:.1%} of the time in steps", told),
        *_row("memory", "{memory_bytes}", told, memory_bytes=numbers.decimal),
        *(row for process in told.get("processes", ()) for row in _process_row(process)),
        *_row("validation", "{bits_per_byte:.4f} bits/byte, causal", found),
        *_row("whole sequence", "{whole_sequence_bits_per_byte:.4f} bits/byte", found),
        *_row("leak", "{leak} bits/byte", found, leak=lambda leak: numbers.signed(leak, 4)),
        *_row("accuracy", "{accuracy:.1%}", found),
        *_row("best", "{bits_per_byte:.4f} bits/byte at step {step:,}, {checkpoint}", best),
    ]


def _process_row(process: dict[str, Any]) -> list[tuple[str, str]]:
    told = "{tokens_per_s:,.0f} tokens/s, {share_of_peak:.1%} of peak, {memory_bytes}, waited {waiting_s}"
    said = {"memory_bytes": numbers.decimal, "waiting_s": numbers.duration}
    return _row(f"process {process.get('process')}", told, _known(process), **said)


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is not None}


def _row(name: str, told: str, figures: dict[str, Any], **said: Callable[[Any], str]) -> list[tuple[str, str]]:
    """A row, in a list; none where it would need a figure that is not there. said: how some figures are written."""
    written = {field: say(figures[field]) for field, say in said.items() if field in figures}
    try:
        return [(name, told.format(**{**figures, **written}))]
    except KeyError:
        return []
