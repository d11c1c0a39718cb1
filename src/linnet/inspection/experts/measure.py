"""How often each expert is used, over windows of text.

Legend: `N` windows, `T` tokens of a window, `E` experts of a layer.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.split import Split
from linnet.inspection.subject import text_model_on_data
from linnet.inspection.windows import spread_windows
from linnet.layers.batch_layout import EXPERTS_USED
from linnet.model.decoder import Decoder
from linnet.model.watched import shown
from linnet.present.progress import progress


@dataclass(frozen=True)
class LayerExpertUsage:
    """Of one layer: the share of all choices that each expert got; they add up to 1."""

    layer: int
    shares: list[float]

    @property
    def loads(self) -> list[float]:
        """The shares, as multiples of an even one."""
        return [len(self.shares) * share for share in self.shares]

    @property
    def effective(self) -> float:
        """`exp` of the shares' entropy: so many experts, used alike, would be as spread."""
        return math.exp(-sum(share * math.log(share) for share in self.shares if share))

    @property
    def never(self) -> int:
        """How many were not used once."""
        return self.shares.count(0.0)

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        named = {"layer": self.layer, "experts": len(self.shares), "effective": self.effective}
        return {**named, "largest_load": max(self.loads), "never_used": self.never, "shares": self.shares}


@dataclass(frozen=True)
class ExpertUsage:
    """Of every layer that has experts, over so many windows of so many tokens."""

    windows: int
    tokens: int
    layers: list[LayerExpertUsage]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        per_layer = [layer.figures() for layer in self.layers]
        return {"windows": self.windows, "tokens": self.tokens, "per_layer": per_layer}


def inspect_experts(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 32,
    context_length: int | None = None,
    device: str = "auto",
) -> ExpertUsage:
    """Measure a model folder on a data folder: `windows` of the split, spread evenly, or as many as it has.

    `UserError` where model and data do not fit, or no layer has experts.
    """
    subject = text_model_on_data(model, data_folder, split, context_length, device=device)
    end_id, context = subject.data.tokenizer.end_id, subject.context_length
    found = expert_usage(subject.decoder, spread_windows(subject.sequence, end_id, windows, context))
    if not found.layers:
        raise UserError(f"{model}: has no experts; expected a model with a feed_forward of kind experts")
    return found


@torch.no_grad()
def expert_usage(decoder: Decoder, windows_NT: Tensor) -> ExpertUsage:
    """Over windows `[N, T]`, read one by one; no layers where none has experts."""
    used: dict[int, Tensor] = {}
    with progress("reading", len(windows_NT), "windows") as advance:
        for window_T in windows_NT:
            for number, outputs in enumerate(shown(decoder, window_T[None].to(decoder.device))):
                if EXPERTS_USED in outputs:
                    (used_E,) = outputs[EXPERTS_USED].cpu()
                    used[number] = used.get(number, torch.zeros_like(used_E)) + used_E
            advance(1)
    layers = [LayerExpertUsage(number, (used_E.double() / used_E.sum()).tolist()) for number, used_E in used.items()]
    return ExpertUsage(len(windows_NT), windows_NT.shape[1], layers)
