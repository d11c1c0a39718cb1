"""Which experts are used? The share of tokens that each expert gets over windows of text.

Shapes: `N` windows, `T` tokens of a window, `E` experts of a layer.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.split import Split
from linnet.evaluation.models import text_model_on_data
from linnet.inspection.text_model import TextInspection, spread_windows
from linnet.layers.batch_layout import EXPERTS_USED
from linnet.model.decoder import Decoder
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.progress import progress
from linnet.present.result import Picture
from linnet.present.table import Table


@dataclass(frozen=True)
class LayerExpertUsage:
    """For one layer: the share of all choices that each expert got; the shares add up to 1."""

    layer: int
    shares: list[float]

    @property
    def loads(self) -> list[float]:
        """The shares as multiples of an equal share."""
        return [len(self.shares) * share for share in self.shares]

    @property
    def effective(self) -> float:
        """`exp` of the entropy of the shares: the number of equally used experts with the same entropy."""
        return math.exp(-sum(share * math.log(share) for share in self.shares if share))


@dataclass(frozen=True)
class ExpertUsage(TextInspection):
    """The usage in every layer that has experts, over `windows` of `tokens` tokens. about: the model and the text."""

    subject: ClassVar[str] = "Experts"

    windows: int
    tokens: int
    layers: list[LayerExpertUsage]
    about: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        per_layer = [
            {
                "layer": layer.layer,
                "experts": len(layer.shares),
                "effective": layer.effective,
                "largest_load": max(layer.loads),
                "never_used": layer.shares.count(0.0),
                "shares": layer.shares,
            }
            for layer in self.layers
        ]
        return {**self.about, "windows": self.windows, "tokens": self.tokens, "per_layer": per_layer}

    def tables(self) -> list[Table]:
        rows = [
            (
                f"layer {layer.layer}",
                str(len(layer.shares)),
                *(f"{value:.3g}" for value in (layer.effective, max(layer.loads), min(layer.loads))),
                str(layer.shares.count(0.0)),
            )
            for layer in self.layers
        ]
        columns = ("", "experts", "effective", "largest load", "smallest load", "never used")
        note = (
            f"Over {self.windows} windows of {self.tokens:,} tokens. Effective: number of equally used experts with the"
            " same entropy of usage. Load: usage of an expert relative to equal usage of all."
        )
        return [Table("Usage of experts", columns, rows, note)]

    def plots(self) -> list[Picture]:
        panels = []
        for layer in self.layers:
            bars = Series(np.arange(len(layer.loads) + 1) - 0.5, layer.loads, style="bars")
            panels.append(Panel(Axis("expert"), Axis("load", low=0.0), [bars], f"layer {layer.layer}", [Rule(1.0)]))
        plot = Plot(panels, (4.4, 2.6), columns=min(3, len(panels)), shared="y")
        caption = "Usage of each expert relative to equal usage of all, which is the line at 1."
        return [Picture("expert_usage", "Load of each expert", plot, caption)]


def inspect_experts(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 32,
    context_length: int | None = None,
    device: str = "auto",
) -> ExpertUsage:
    """Measure a model folder on evenly spaced windows of a split of a data folder.

    `UserError` if model and data do not fit, or no layer has experts.
    """
    found = text_model_on_data(model, data_folder, split, context_length, device=device)
    windows_NT = spread_windows(found.sequence, windows, found.context_length)
    about = {"model": str(model), "data": str(data_folder), "split": split}
    usage = ExpertUsage(len(windows_NT), windows_NT.shape[1], expert_usage(found.decoder, windows_NT), about)
    if not usage.layers:
        raise UserError(f"{model}: has no experts; expected a model with a feed_forward of kind experts")
    return usage


@torch.no_grad()
def expert_usage(decoder: Decoder, windows_NT: Tensor) -> list[LayerExpertUsage]:
    """The usage of experts over windows `[N, T]`, read one by one; empty if no layer has experts."""
    used: dict[int, Tensor] = {}
    with progress("reading", len(windows_NT), "windows") as advance:
        for window_T in windows_NT:
            for number, outputs in enumerate(decoder.auxiliary_outputs(window_T[None].to(decoder.device))):
                if EXPERTS_USED in outputs:
                    (used_E,) = outputs[EXPERTS_USED].cpu()
                    used[number] = used.get(number, torch.zeros_like(used_E)) + used_E
            advance(1)
    return [LayerExpertUsage(number, (used_E.double() / used_E.sum()).tolist()) for number, used_E in used.items()]
