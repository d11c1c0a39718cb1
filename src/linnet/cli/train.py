"""`linnet train`: train a model on a data folder; the result is a run folder."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli.console import check_out_path, interruptions_reported, invocation, note, show_result
from linnet.cli.options import (
    AsJson,
    ChatTemplateFile,
    ExecutorName,
    Fields,
    LongConversationsChoice,
    SlurmOptions,
    Workers,
    option,
    with_fields,
)
from linnet.cli.process import exit_code
from linnet.core.bounds import MAX_VERIFIED_STEPS
from linnet.core.errors import UserError
from linnet.core.system import refuse_distributed
from linnet.present import numbers
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.experiments.executors import Executor
    from linnet.training.distributed import Processes
    from linnet.training.run import RunResult
    from linnet.training.spec import RunSpec

USUAL = (
    "--model", "--data", "--out", "--recipe", "--set",
    "--from", "--chat", "--preferences", "--prompts", "--json",
)  # fmt: skip
"""The options that the short help shows."""

COMMAND = with_fields("linnet.training.spec:RunSpec", "model.vocab_size", "data", "start_from")


def train(
    out: Annotated[Path, option("RUN", "The run folder: a new one, or one to continue.")],
    model: Annotated[
        str | None,
        option("PRESET|FILE|MODEL", "A preset, a YAML file, or a model folder, of which only the description is used."),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="A model folder, or the folder of a run, to start from; the data must have its tokenizer.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        option("DIR|FILE", "A data folder made by `linnet prepare`; or a small text, or a mixture.yaml of texts."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option(
            "bytes|char|bpe|unigram|PATH",
            "Of a text that --data names. Default: a bpe as large as the model's vocabulary.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        option(
            "FILE.jsonl",
            'Instead of --data: lines {"input": "...", "target": "..."}; the loss is that of the targets alone.',
        ),
    ] = None,
    chat: Annotated[
        list[Path] | None,
        option(
            "FILE.jsonl",
            "Instead of --data: conversations (repeatable); with --from, whose chat template and tokenizer are used. "
            "The loss is that of the answers alone.",
        ),
    ] = None,
    preferences: Annotated[
        list[Path] | None,
        option(
            "FILE.jsonl",
            "Instead of --data: pairs of a chosen and a rejected answer (repeatable); with --from. The objective is "
            "training.preference: dpo, ipo, orpo or reward.",
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        option(
            "FILE.jsonl",
            "Instead of --data: prompts whose answers a checker judges (repeatable); with --from. The objective is "
            "training.grpo.",
        ),
    ] = None,
    chat_template: ChatTemplateFile = None,
    long_conversations: LongConversationsChoice = None,
    config: Annotated[Path | None, option("FILE", "YAML with the sections model, data, training.")] = None,
    recipe: Annotated[
        str | None,
        option(
            "auto|NAME|FILE",
            "auto fits optimizer, batch, learning rate and schedule to model and tokens; a name: the recipe of a "
            "published model. --config and other options change single fields.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a field (repeatable); --KEY VALUE does the same, such as --steps 2000 --batch-size 16 "
            "--lr 3e-4 --seed 1.",
        ),
    ] = None,
    list_fields: Fields = False,
    verify_resume: Annotated[
        bool,
        typer.Option("--verify-resume", help="Train nothing in RUN: test that a killed run resumes bit for bit."),
    ] = False,
    verify_steps: Annotated[
        int | None,
        option("N", "With --verify-resume: the number of steps.", min=4, max=MAX_VERIFIED_STEPS, show_default="20"),
    ] = None,
    sweep: Annotated[
        str | None,
        option(
            "FIELD[=A,B,...]", "Train once for each value of a field and print the best; lr alone: around its value."
        ),
    ] = None,
    sweep_steps: Annotated[int | None, option("N", "With --sweep: steps for each value. Default: all.", min=1)] = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    slurm_options: SlurmOptions = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, or continue an interrupted run.

    Example: linnet train --model tiny-ted --recipe auto --data data/stories --out runs/auto --steps 2000

    Every field of the configuration is an option: --fields lists all of them, docs/training-reference.md explains them.
    The usual ones are --steps or --tokens, --batch-size, --training.context-length, --lr, --windows, --seed, --device,
    --precision and --threads. --model.KEY changes the model.

    RUN gets config.yaml (with every default), metrics.jsonl, curves.png, checkpoints, and a model folder with the
    weights of the last step. Ctrl-C and SIGTERM save and stop (exit codes 130 and 143). The same command, or --out RUN
    alone, continues, and ends bit for bit where an uninterrupted run ends (same machine, CPU). --out RUN --steps N with
    more steps extends a run, also a finished one; the schedule is then that of N steps.

    --verify-resume tests this on the run: its first steps are trained in a folder beside RUN, once without interruption
    and once killed (SIGKILL) at a random moment and resumed, also with a truncated newest checkpoint; weights, moments
    and figures are compared bit for bit. The exit code is 1 if any differ.

    --sweep lr trains the run with a quarter, half, one, two and four times its learning rate, --sweep batch_size=4,8,16
    with these values of another number of `training`, in RUN/lr-0.001 and so on. It prints a table, a plot of held-out
    bits per byte, the options that train with the best value, and a note if that is the lowest or highest. Each value
    is trained on as many tokens: all of the run's, or those of --sweep-steps. The same command continues and trains no
    value twice. A value that diverges is reported, and the others continue (exit code 1 if all diverge). --executor and
    --workers train several values at a time, as in linnet compare.

    Several processes, on one machine or many, train one model with `torchrun --nproc-per-node 2 -m linnet train` and
    the same options; --shard of them share one copy of the weights.

    A text of at most 100 MB needs no `linnet prepare`: --data FILE, or a mixture.yaml, whose shares the run then reads.
    It becomes a data folder, RUN/text, with a tokenizer that is trained on it (--tokenizer), or with that of --from.

    Example: linnet train --model tiny-ted --data stories.txt --out runs/stories --steps 200

    --pairs trains an encoder-decoder, a model with prefix: true, or any decoder on targets that follow from inputs. The
    pairs become a data folder, RUN/pairs, with a tokenizer as large as the model's vocabulary (--from: the model's).

    --chat trains on the answers of conversations (docs/conversations.md), which become a data folder, RUN/chat.

    Example: linnet train --from runs/base --chat chat.jsonl --out runs/chat

    --set training.replay.data=data/stories mixes windows of a text among the conversations, so that the model does not
    forget it.

    --preferences makes the chosen answers of pairs likelier than the rejected ones (docs/preferences.md); RUN gets the
    data folder preferences, and reference.safetensors with what the model at the start thinks of all answers.

    Example: linnet train --from runs/chat --preferences preferences.jsonl --out runs/dpo --lr 1e-5

    --prompts lets the model answer, and makes answers that a checker likes likelier (docs/grpo.md).

    Example: linnet train --from runs/chat --prompts prompts.jsonl --out runs/grpo --lr 1e-5

    Example: linnet train --model ted-tinystories --recipe ted-tinystories --data data/stories --out runs/ted

    Example: linnet train --from runs/ted --data data/letters --out runs/ted-letters --lr 1e-4

    Example: linnet train --model tiny-encoder-decoder --pairs pairs.jsonl --out runs/pairs

    Example: linnet train --out runs/ted --set training.steps=40000

    Example: linnet train --out runs/ted --verify-resume

    Example: linnet train --model tiny-ted --data data/stories --out runs/rates --sweep lr --sweep-steps 200

    Example: linnet train --config run.yaml --out runs/small --set model.context_length=256

    Example: linnet train --model pldr-v51-110m-1 --recipe pldr-v51-110m-1 --data data/web --out runs/pldr
    """
    from linnet.core.system import keep_freed_memory
    from linnet.training.distributed import LostProcessError, PeerError, join_processes
    from linnet.training.run_files import given_files, text_of
    from linnet.training.run_folder import DivergedError

    keep_freed_memory()
    if verify_steps is not None and not verify_resume:
        raise UserError("--verify-steps: belongs to --verify-resume")
    if sweep_steps is not None and sweep is None:
        raise UserError("--sweep-steps: belongs to --sweep")
    if sweep is None and (executor, workers, slurm_options) != ("local", 1, None):
        raise UserError("--executor, --workers, --slurm-option: belong to --sweep; torchrun starts several processes")
    if sweep is not None and verify_resume:
        raise UserError("--sweep: does not go with --verify-resume; give one of the two")
    text = text_of(data, tokenizer)
    kinds = {"text": text, "pairs": pairs, "chat": chat, "preferences": preferences, "prompts": prompts}
    options = {"chat_template": chat_template, "long_conversations": long_conversations, "tokenizer": tokenizer}
    files = given_files(kinds, options)
    description = (config, model, data, changes or (), recipe, start_from, None, files)
    if verify_resume:
        refuse_distributed("--verify-resume")
        _verify(_resolve(out, description), out, verify_steps, as_json)
        return
    if sweep is not None:
        refuse_distributed("--sweep")
        from linnet.experiments.executors import make_executor

        chosen = make_executor(executor, workers, slurm_options or ())
        _sweep(sweep, _resolve(out, description), out, sweep_steps, chosen, as_json)
        return
    try:
        with join_processes() as processes:
            result = _train(out, description, processes)
    except (DivergedError, LostProcessError) as error:
        note(f"error: {error}")
        raise typer.Exit(1) from None
    except PeerError as elsewhere:
        raise typer.Exit(elsewhere.code) from None
    if processes.is_rank0:
        _report(result, as_json)
    if not result.finished:
        raise typer.Exit(exit_code(result.signal))


def _resolve(out: Path, description: tuple[Any, ...], processes: "Processes | None" = None) -> "RunSpec":
    """Return the run, and make the data folder of its files.

    processes: the group; None: this process alone.
    """
    from linnet.training.distributed import SINGLE_PROCESS
    from linnet.training.run import resolve_run_config
    from linnet.training.run_files import prepare_run_files

    processes = processes or SINGLE_PROCESS
    run, model, files = resolve_run_config(out, *description), description[1], description[-1]
    if files is not None:
        processes.broadcast_from_rank0(lambda: prepare_run_files(run, files))
    if processes.is_rank0 and model is not None and Path(model).is_dir() and run.start_from is None:
        note(f"note: --model {model}: its description alone, with fresh weights; --from {model} begins with its own")
    return run


def _train(out: Path, description: tuple[Any, ...], processes: "Processes") -> "RunResult":
    from linnet.training.reporter import Reporter, terminal_reporter
    from linnet.training.run import train_run

    run = _resolve(out, description, processes)
    with terminal_reporter() if processes.is_rank0 else nullcontext(Reporter()) as reporter:
        return train_run(run, out, reporter, command=invocation())


def _verify(run: "RunSpec", out: Path, steps: int | None, as_json: bool) -> None:
    """Print whether a killed run resumes bit for bit; the exit code is 1 if it does not."""
    from linnet.present.table import Table
    from linnet.training.verification import STEPS, verify_resume

    found = verify_resume(run, out, steps or STEPS)
    if as_json:
        write_json(found.to_dict())
    else:
        columns = ("resumed after", "compared", "values", "different")
        rows = [(each.case, each.what, f"{each.count:,}", f"{each.differs:,}") for each in found.compared]
        resumed = " and ".join(f"{step} ({case})" for case, step in found.resumed_from.items())
        text = f"{found.steps} steps, killed after step {found.killed_at}, resumed from step {resumed}."
        write_parts(Table("", columns, rows, f"{text} {found.refused}"))
        verdict = "the same to the last bit" if found.same else "not the same: this run does not resume as it was"
        write(f"{verdict}\n")
    if not found.same:
        raise typer.Exit(1)


def _sweep(text: str, run: "RunSpec", out: Path, steps: int | None, executor: "Executor", as_json: bool) -> None:
    """Train with every value and print the table; the exit code is 1 if all diverge."""
    from linnet.experiments.jobs import Runner
    from linnet.experiments.sweep import sweep

    check_out_path(out, "--out", "DIR")
    with interruptions_reported():
        findings = sweep(text, run, out, Runner(note, invocation()), steps, executor)
    show_result(findings, None, as_json)
    if findings.best is None:
        note("error: every value diverged; lower values, or a longer warm-up, may not")
        raise typer.Exit(1)


def _report(result: "RunResult", as_json: bool) -> None:
    """Print the figures of a run that ended or stopped."""
    from linnet.present.table import Table

    summary = result.summary
    if as_json:
        write_json({"run": str(result.folder), "model": str(result.model), **summary})
    else:
        write_parts(Table("", ("", ""), _rows(summary), text=True))
        weights = "averaged weights until" if summary.get("averaging") else "the weights of"
        write(f"model: {result.model} ({weights} step {summary['step']})\n")
    if not result.finished:
        note(f"stopped at step {summary['step']} of {summary['steps']}; saved; the same command continues")


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and figures; figures that were not measured or recorded are left out.

    Of a run on pairs or prompts what these say stands there, and not which step had the fewest bits per byte.
    """
    from linnet.training.objective_figures import held_out_rows, is_judged

    found = _known(summary)
    held_out, best = _known(found.get("validation", {})), _known(found.get("best", {}))
    replayed = {when: (each or {}).get("bits_per_byte") for when, each in found.get("replay", {}).items()}
    peak, lora = found.get("machine", {}).get("peak") or {}, found.get("lora", {})
    speed, share = "{tokens_per_s:,.0f} tokens/s", "{share_of_peak:.1%} of {flops_per_s} FLOP/s"
    product = "the speed of a large matrix product on this machine, measured on {measured}"
    formats: dict[str, Callable[[Any], str]] = {"memory_bytes": numbers.decimal, "waiting_s": numbers.duration}
    rows = [
        *_row("steps", "{step:,} of {steps:,}", found),
        *_row("tokens", "{tokens:,}", found),
        *_row("parameters", "{parameters:,}", found),
        *_row("trained", "{parameters:,} parameters (training.lora, rank {rank})", lora),
        *_row("time in steps", "{seconds}", found, seconds=numbers.duration),
        *_row("speed", speed, found),
        *_row("share of peak", f"{share}, {product}", found | peak, flops_per_s=numbers.scientific),
        *_row("Muon's share", "{orthogonalizing_share:.1%} of the time in steps", found),
        *_row("memory", "{memory_bytes}", found, **formats),
    ]
    for each in found.get("processes", ()):
        own = {"share": "", **_known(each)}
        if "share_of_peak" in own:
            own["share"] = f", {own['share_of_peak']:.1%} of peak"
        text = f"{speed}{{share}}, {{memory_bytes}}, waited {{waiting_s}}"
        rows += _row(f"process {each.get('process')}", text, own, **formats)
    for source in found.get("sources", ()):
        text = "{tokens:,} tokens, {share:.1%} of all ({share_of_bytes:.1%} of the bytes), {epochs:.2f} epochs"
        rows += _row(f"source {source.get('source')}", text, source)
    if is_judged(found):
        name = "chosen answers" if found.get("preferences") else "prompts as text"
        return [*rows, *held_out_rows(found), *_row(name, "{bits_per_byte:.4f} bits/byte, causal", held_out)]
    return [
        *rows,
        *_row("validation", "{bits_per_byte:.4f} bits/byte, causal", held_out),
        *_row("whole sequence", "{whole_sequence_bits_per_byte:.4f} bits/byte", held_out),
        *_row("leak", "{leak} bits/byte", held_out, leak=lambda leak: numbers.signed(leak, 4)),
        *_row("accuracy", "{accuracy:.1%}", held_out),
        *_row("replayed text", "{after:.4f} bits/byte, {before:.4f} before the first step", _known(replayed)),
        *_row("best", "{bits_per_byte:.4f} bits/byte at step {step:,}, {checkpoint}", best),
    ]


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is not None}


def _row(name: str, text: str, figures: dict[str, Any], **formats: Callable[[Any], str]) -> list[tuple[str, str]]:
    """Return a list with one row; an empty one if a figure is missing. formats: how some figures are written."""
    written = {field: write_value(figures[field]) for field, write_value in formats.items() if field in figures}
    try:
        return [(name, text.format(**{**figures, **written}))]
    except KeyError:
        return []
