"""The files of a run that are read without PyTorch: their names and schemas, and `metrics.jsonl`.

Files that have no checksum may have been edited; their fields are checked against these schemas.
"""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, PositiveInt, create_model

from linnet.core.atomic import errors_naming
from linnet.core.checksum import check_files, checksum_of_text, text_without_checksum, with_checksum, without_checksum
from linnet.core.errors import UserError, note
from linnet.core.files import open_file, read_json, read_text, write_text
from linnet.core.migration import EXTENSIONS as EXTENSIONS_0_1
from linnet.core.migration import upgrade_figures, upgrade_run
from linnet.core.spec import first_schema_error, parse_yaml
from linnet.model.folder import MODEL, RUN

if TYPE_CHECKING:
    from linnet.present.plot import Plot

CONFIG, FILES, METRICS, CURVES, CHECKPOINTS, LOCK = (
    "config.yaml", "files.json", "metrics.jsonl", "curves.png", "checkpoints", ".lock",
)  # fmt: skip
EXTENSIONS, PRECISION = "extensions.json", "precision.json"

DIVERGED = "diverged.json"
"""Where a run diverged and why. Training that run again tries it again; a comparison that contains it does not."""

REFERENCE_LOG_PROBABILITIES = "reference.safetensors"
"""What the model that a run starts from thinks of the answers of its data (`callbacks.preferences`)."""

ADAPTER_FOLDER = "adapter"
"""Low-rank parts apart from the weights that they were trained on (`training.lora`)."""

DAMAGED = "metrics.damaged.jsonl"
"""Lines of `metrics.jsonl` that could not be read when the run was resumed."""

TAIL_BYTES = 1 << 16

_OPTIONAL: Any = Field(default=None)


def _schema(name: str, **fields: Any) -> type[BaseModel]:
    """A schema in which a field may be absent, unless it is marked by `...`; each reader checks what it needs."""
    typed: Any = {key: kind if isinstance(kind, tuple) else (kind, _OPTIONAL) for key, kind in fields.items()}
    schema: type[BaseModel] = create_model(name, **typed)
    return schema


VALIDATION = _schema(
    "Validation", bits_per_byte=float, nats_per_token=float, tokens=PositiveInt, bytes=PositiveInt,
    whole_sequence_bits_per_byte=float, leak=float, accuracy=float,
)  # fmt: skip

HELD_OUT_PAIRS = _schema(
    "HeldOutPairs", pairs=(int, ...), preference_loss=(float, ...), accuracy=(float, ...), margin=(float, ...)
)
HELD_OUT_PROMPTS = _schema("HeldOutPrompts", prompts=(int, ...), answers=(int, ...), reward=(float, ...))

LINE = _schema(
    "Line",
    step=(int, ...),
    tokens=int,
    bits_per_byte=float,
    lr=float,
    gradient_norm=float,
    terms=dict[str, float],
    validation=VALIDATION,
    preferences=HELD_OUT_PAIRS,
    rollouts=HELD_OUT_PROMPTS,
)
"""A line of `metrics.jsonl`."""

SUMMARY = _schema(
    "Summary",
    step=int,
    steps=int,
    tokens=int,
    parameters=int,
    seconds=float,
    tokens_per_s=float | None,
    share_of_peak=float | None,
    orthogonalizing_share=float | None,
    memory_bytes=int,
    validation=VALIDATION | None,
    preferences=HELD_OUT_PAIRS | None,
    rollouts=_schema("Rollouts", before=HELD_OUT_PROMPTS | None, after=HELD_OUT_PROMPTS | None),
    best=_schema("Best", step=int, bits_per_byte=float, checkpoint=str) | None,
    data=_schema("Data", manifest_sha256=str, tokenizer_hash=str) | None,
    machine=_schema("Machine", precision=str),
    processes=list[  # type: ignore[misc]
        _schema(
            "Process", process=int, tokens_per_s=float, share_of_peak=float | None, memory_bytes=int, waiting_s=float
        )
    ],
    embedding_from=_schema("WordVectors", file=(str, ...), tokens_found=(int, ...), tokens=(PositiveInt, ...)) | None,
    sources=list[  # type: ignore[misc]
        _schema("Source", source=(str, ...), tokens=int, share=float, share_of_bytes=float, epochs=float)
    ],
    spikes=_schema("Spikes", count=(int, ...)) | None,
    extensions=list[_schema("Extended", step=(int, ...), steps=(int, ...))] | None,  # type: ignore[misc]
    configuration=str | None,
)
"""`run.json` of a training run."""


def plain_configuration(text: str, origin: str) -> Any:
    """The fields in the text of a `config.yaml`; `UserError` if it was changed."""
    return upgrade_run(parse_yaml(text_without_checksum(text, origin), origin), origin)


def finished_summary(folder: Path, also: Sequence[str] = ()) -> dict[str, Any] | None:
    """The content of `model/run.json` if the run in a folder is finished.

    `UserError` if that file, or a file of the model in `also`, was changed.
    """
    file = folder / MODEL / RUN
    if not file.is_file():
        return None
    check_files(folder / MODEL, (RUN, *also))
    summary: dict[str, Any] = upgrade_figures(read_json(file))
    if not isinstance(summary, dict) or summary.get("finished") is not True:
        return None
    if wrong := first_schema_error(summary, SUMMARY):
        raise UserError(f"{file}: {wrong}")
    config, expected = folder / CONFIG, summary.get("configuration")
    if any((folder / name).is_file() for name in (EXTENSIONS, EXTENSIONS_0_1)):
        configuration = plain_configuration(read_text(config), str(config))
        if summary.get("steps") != configuration["training"]["steps"]:
            return None
    found = checksum_of_text(read_text(config)) if expected else None
    if found is not None and found != expected:
        raise UserError(f"{config}: not the configuration of the run that {file} describes")
    return summary


@dataclass(frozen=True)
class Metrics:
    """`metrics.jsonl`: one JSON object per line, in ascending order of steps, each with its checksum."""

    path: Path

    def append(self, line: dict[str, Any]) -> None:
        with errors_naming(self.path), open(self.path, "a", encoding="utf-8", opener=_not_through_links) as handle:
            handle.write(json.dumps(with_checksum(line)) + "\n")

    def push_to_disk(self) -> None:
        with errors_naming(self.path), self.path.open("rb") as handle:
            os.fsync(handle.fileno())

    def read(self, expected_steps: Collection[int] = ()) -> list[dict[str, Any]]:
        """The lines. A note names damaged ones, except a last one that a killed process left unfinished.

        expected_steps: steps that have a line; a note names those that have none.
        """
        lines, damaged = self._read(expected_steps)
        for number, _ in damaged:
            note(f"{self.path}, line {number}: damaged, left out")
        return lines

    def tail(self) -> list[dict[str, Any]]:
        """The complete lines in the last `TAIL_BYTES` of the file."""
        if not self.path.is_file():
            return []
        with open_file(self.path) as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - TAIL_BYTES))
            texts = handle.read(TAIL_BYTES).split(b"\n")
        found = (_from_text(text, str(self.path)) for text in texts[size > TAIL_BYTES :])
        return [line for line in found if line is not None]

    def cut(self, step: int, expected_steps: Collection[int] = ()) -> None:
        """Remove the lines after `step`: the run continues there and writes them again. Damaged ones are set aside.

        expected_steps: as for `read`.
        """
        lines, damaged = self._read(expected_steps)
        if damaged:
            aside = self.path.with_name(DAMAGED)
            with open(aside, "ab", opener=_not_through_links) as handle:
                handle.writelines(text + b"\n" for _, text in damaged)
            listed = ", ".join(str(number) for number, _ in damaged)
            note(f"{self.path}, line {listed}: damaged, kept in {aside.name}")
        kept = [json.dumps(with_checksum(line)) + "\n" for line in lines if line["step"] <= step]
        write_text(self.path, "".join(kept))

    def _read(self, expected_steps: Collection[int]) -> tuple[list[dict[str, Any]], list[tuple[int, bytes]]]:
        """The lines, and the damaged ones with their numbers."""
        lines, damaged, last = list[dict[str, Any]](), list[tuple[int, bytes]](), -1
        if self.path.is_file():
            with open_file(self.path) as handle:  # line by line: a long run has more than other files may have
                for number, text in enumerate(handle, start=1):
                    line = _from_text(text, f"{self.path}, line {number}")
                    if line is not None and line["step"] > last:
                        lines.append(line)
                        last = line["step"]
                    elif text.endswith(b"\n"):
                        damaged.append((number, text.removesuffix(b"\n")))
        elif self.path.exists():
            note(f"{self.path}: not a file, left out")
        lost = sorted(set(expected_steps) - {line["step"] for line in lines})
        if len(lost) > len(damaged):
            first = ", ".join(map(str, lost[:3])) + (f" and {len(lost) - 3:,} more" if len(lost) > 3 else "")
            note(f"{self.path}: no line of step {first}: lost, and missing in its curves")
        return lines, damaged


def _from_text(text: bytes, origin: str) -> dict[str, Any] | None:
    """The figures of a line; None if it is damaged or was changed."""
    try:
        line: dict[str, Any] = upgrade_figures(without_checksum(json.loads(text), origin))
    except (ValueError, RecursionError):  # UserError is a ValueError
        return None
    return line if first_schema_error(line, LINE) is None else None


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def draw_curves(lines: list[dict[str, Any]], path: Path, title: str, causal: bool) -> None:
    """Draw lines of metrics as a PNG. causal: False if the training pass sees the future; the legend then says so."""
    curves(lines, title, causal).write(path)


def curves(lines: list[dict[str, Any]], title: str, causal: bool) -> "Plot":
    """Loss, learning rate and gradient norm over the steps, and what pairs or prompts say of a run on these.

    The axis of the loss is logarithmic and shows all steps.
    """
    from linnet.present import numbers
    from linnet.present.plot import Axis, Panel, Plot, Series
    from linnet.present.style import INK
    from linnet.training.objective_figures import objective_curve

    steps, x = [line["step"] for line in lines], Axis("step")
    evaluated = [line for line in lines if "validation" in line]
    points, found = [line["step"] for line in evaluated], [line["validation"] for line in evaluated]
    training = "training" if causal else "training (the pass sees the whole sequence)"
    losses = [Series(steps, [line["bits_per_byte"] for line in lines], training, faint=True)]
    validation = [one["bits_per_byte"] for one in found]
    if found:
        latest = f"validation, causal: {validation[-1]:.3f} at the end"
        losses.append(Series(points, validation, latest, "o-", color=1))
    if found and not causal:
        whole = [one["whole_sequence_bits_per_byte"] for one in found]
        losses.append(Series(points, whole, "validation, whole sequence", "--", color=1))
    rate = Series(steps, [line["lr"] for line in lines], color=2)
    norm = Series(steps, [line["gradient_norm"] for line in lines], color=INK, faint=True)
    norm_axis = Axis("gradient norm", "log" if any(norm.y) else "linear")  # without rewards there is no gradient
    panels = [
        Panel(x, Axis("loss, bits per byte", "log"), losses, title),
        Panel(x, Axis("learning rate", format=numbers.exact, low=0), [rate]),
        Panel(x, norm_axis, [norm]),
    ]
    heights = [3, 1, 1]
    if curve := objective_curve(lines):
        trained = Series(curve.steps, curve.trained, faint=True)
        held_out = Series(curve.held_out_steps, curve.held_out, curve.held_out_name, "o-", color=3)
        panels.insert(1, Panel(x, Axis(curve.title), [trained, held_out]))
        heights.insert(1, 2)
    return Plot(panels, (9.0, 2.5), shared="x", heights=heights)
