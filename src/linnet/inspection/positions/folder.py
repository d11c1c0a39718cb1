"""Loss by position of a model folder on a data folder."""

from pathlib import Path

import torch

from linnet.core.errors import UserError
from linnet.data.split import Split
from linnet.evaluation.frozen import CalibrationText
from linnet.inspection.positions.measure import PositionLosses, measure_positions
from linnet.inspection.positions.variants import variants
from linnet.inspection.subject import text_model_on_data
from linnet.inspection.windows import spread_windows

TIMES = 8
"""How many trained lengths are read, unless told otherwise."""


def inspect_positions(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 16,
    times: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> PositionLosses:
    """Read windows of a split that are `times` as long as those of the training, with each way of scaling positions.

    `UserError` where model and data do not fit, the split has no window so long, or learned positions end before.
    """
    subject = text_model_on_data(model, data_folder, split, calibrate_on=calibrate_on, device=device)
    spec = subject.decoder.spec
    learned = spec.embedding.positions == "learned"
    if learned and times is not None and times > 1:
        raise UserError(f"the model's learned positions end at {spec.context_length}", field="times", value=times)
    tokens = spec.context_length * (times or (1 if learned else TIMES))
    if len(subject.sequence) <= tokens + 1:
        raise UserError(
            f"{subject.sequence.name}: {len(subject.sequence):,} tokens: expected more than {tokens + 1:,};"
            " prepare more text or read fewer `times` the trained length"
        )
    end_id = subject.data.tokenizer.end_id
    windows_NT = spread_windows(subject.sequence, end_id, windows, tokens + 1)
    token_bytes_V = torch.from_numpy(subject.data.tokenizer.token_bytes())
    return measure_positions(subject.decoder, windows_NT, token_bytes_V, variants(spec), subject.calibration())
