"""Measures of how close power-law graph attention is to a critical state (Gokden, arXiv 2603.23539 and 2608.10288).

In the author's critical models the deductive outputs hardly depend on the text, A has rank one, and G commutes little
with rotary positions. The definitions are those of the author's published audit; the code is our own.

Shapes: `H` heads, `K` head width, `N` documents, `T` tokens of a document.
"""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.core.spec import Seed, Spec
from linnet.layers.inspection import InspectedModel, Inspection, InspectionTarget
from linnet.layers.mixers.plga.matrices import range_text, rank_range, ranks, singular_values
from linnet.layers.mixers.plga.module import Plga
from linnet.layers.mixers.plga.operator import OUTPUTS
from linnet.layers.rotary import RotarySpec
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.present.result import Result
from linnet.present.table import Table

Deduced = list[dict[str, Tensor]]
"""The deductive outputs of each layer that deduces them, `[H, K, K]` by name."""


@dataclass(frozen=True)
class OrderParameter:
    """The difference of an output between two texts: its RMS, relative to the size of the output.

    rms: relative to the mean of both RMS. signed: relative to the |mean| of the first, which is small if signs cancel.
    """

    rms: float
    signed: float


def order_parameter(x: Tensor, y: Tensor) -> OrderParameter:
    """The order parameter of two tensors of one shape, in float64; NaN if both are zero."""
    x, y = x.double(), y.double()
    difference, rms_x, rms_y = (z.square().mean().sqrt() for z in (x - y, x, y))
    return OrderParameter(float(difference / ((rms_x + rms_y) / 2)), float(difference / x.mean().abs()))


def numerical_ranks(x_HKK: Tensor) -> list[int | None]:
    """The number of singular values of each head above K times the rounding of float32 times the largest."""
    return ranks(singular_values(x_HKK), x_HKK.shape[-1] * torch.finfo(torch.float32).eps)


def rotary_commutant(g_HKK: Tensor, rotary: RotarySpec | None) -> Tensor:
    """The part of each matrix that commutes with the rotation of every position: the nearest one in Frobenius norm.

    Pairs of channels turn at different speeds, so parts between two pairs, or between a pair and channels without
    rotation, do not commute. Within a pair a multiple of a rotation does. The block of channels without rotation does.
    """
    if rotary is None:
        return g_HKK
    width = rotary.width(g_HKK.shape[-1])
    numbers_W = torch.arange(width)
    pairs_2P = numbers_W.view(-1, 2).T if rotary.pairing == "adjacent" else numbers_W.view(2, -1)
    first, second = pairs_2P
    commutant_HKK = torch.zeros_like(g_HKK)
    scale_HP = (g_HKK[:, first, first] + g_HKK[:, second, second]) / 2
    turn_HP = (g_HKK[:, second, first] - g_HKK[:, first, second]) / 2
    commutant_HKK[:, first, first] = commutant_HKK[:, second, second] = scale_HP
    commutant_HKK[:, second, first], commutant_HKK[:, first, second] = turn_HP, -turn_HP
    commutant_HKK[:, width:, width:] = g_HKK[:, width:, width:]
    return commutant_HKK


def not_commuting(g_HKK: Tensor, rotary: RotarySpec | None) -> list[float]:
    """The share of each head's G, in Frobenius norm, that does not commute with rotary positions; NaN for zero."""
    g_HKK = g_HKK.detach().cpu().double()
    rest_H = torch.linalg.matrix_norm(g_HKK - rotary_commutant(g_HKK, rotary))
    shares: list[float] = (rest_H / torch.linalg.matrix_norm(g_HKK)).tolist()
    return shares


@dataclass(frozen=True)
class LayerCriticality:
    """One layer: the smallest and largest ranks of A and A_LM over heads and documents.

    not_commuting: the share of each head's G that does not commute with rotary positions.
    """

    layer: int
    head_width: int
    rank_a: tuple[int | None, int | None]
    rank_a_lm: tuple[int | None, int | None]
    not_commuting: list[float]


@dataclass(frozen=True)
class TextDependence:
    """The order parameters of one output: over all layers together, and of each layer by its index."""

    overall: OrderParameter
    layers: dict[int, OrderParameter]

    def figures(self) -> dict[str, Any]:
        """The figures for JSON."""
        per_layer = [{"layer": layer, **asdict(parameter)} for layer, parameter in self.layers.items()]
        return dict(json_safe({**asdict(self.overall), "per_layer": per_layer}))


@dataclass(frozen=True)
class Criticality(Result):
    """The measures of a model over documents.

    documents, tokens: the number of documents, and of tokens of a document. between_texts, recomputed: the order
    parameters of each deductive output between two documents, and between the first half of a document (which a cache
    stores) and the whole. one_block, sequential: nats per token in one pass without a state, and with each token
    predicted from a separate pass over the earlier ones.
    """

    model: str
    text: str
    documents: int
    tokens: int
    between_texts: dict[str, TextDependence]
    recomputed: dict[str, TextDependence]
    layers: list[LayerCriticality]
    one_block: float
    sequential: float

    def title(self) -> str:
        return f"Criticality of {self.model}"

    def facts(self) -> dict[str, str]:
        return {"text": self.text}

    def tables(self) -> list[Table]:
        loss = [
            ("one block", f"{self.one_block:.4f}"),
            ("sequential", f"{self.sequential:.4f}"),
            ("difference", numbers.signed(self.sequential - self.one_block, 4)),
        ]
        meaning = (
            "One block: one pass over a document, whose operator depends on later tokens. Sequential: each token is"
            " predicted from a separate pass over the earlier ones."
        )
        return [_order_table(self), _matrix_table(self), Table("Loss", ("", "nats per token"), loss, meaning)]

    def to_dict(self) -> dict[str, Any]:
        per_layer = []
        for layer in self.layers:
            named = asdict(layer)
            for name in ("rank_a", "rank_a_lm"):
                named[name] = dict(zip(("smallest", "largest"), named[name], strict=True))
            per_layer.append(json_safe(named))
        return {
            "model": self.model,
            "documents": self.documents,
            "tokens": self.tokens,
            "between_texts": {name: dependence.figures() for name, dependence in self.between_texts.items()},
            "recomputed": {name: dependence.figures() for name, dependence in self.recomputed.items()},
            "per_layer": per_layer,
            "loss": {"one_block": self.one_block, "sequential": self.sequential},
        }


class CriticalityOptions(Spec):
    """Options of `linnet inspect criticality`."""

    documents: Annotated[int, Field(ge=2)] = Field(8, description="Documents to draw, or all that are long enough.")
    tokens: Annotated[int, Field(ge=4)] = Field(
        64, description="Tokens of each document, the end token before it included."
    )
    seed: Seed = Field(0, description="Decides which documents are drawn.")


def inspect_criticality(target: InspectionTarget, options: CriticalityOptions) -> Criticality:
    """Measure a model over the beginnings of documents; `UserError` if it deduces no operator."""
    model = load_plga(target, deducing=True)
    model.check_positions(options.tokens, "tokens")
    documents_NT = model.documents(options.documents, options.tokens, options.seed)
    text = f"{len(documents_NT)} documents of the {target.split} split of {target.data}, seed {options.seed}"
    return criticality(model, documents_NT, target.source, text)


def deduces(model: InspectedModel) -> bool:
    """True if a layer of the model deduces its operator from the text."""
    return any(isinstance(mixer, Plga) and mixer.traits.calibrates for mixer in model.mixers)


def load_plga(target: InspectionTarget, deducing: bool) -> InspectedModel:
    """Load a model with operators; `UserError` if it has none, or with `deducing` only fixed ones."""
    model = target.model()
    if not any(isinstance(mixer, Plga) for mixer in model.mixers):
        kinds = ", ".join(dict.fromkeys(model.kinds))
        raise UserError(f"{target.source}: has no operator: its token mixer is {kinds}; expected a model with plga")
    if deducing and not deduces(model):
        raise UserError(f"{target.source}: its operators are fixed; expected a model that deduces them from the text")
    return model


def criticality(model: InspectedModel, documents_NT: Tensor, name: str = "", text: str = "") -> Criticality:
    """All measures over at least two documents `[N, T]`; outputs are compared in float64."""
    count, tokens = documents_NT.shape
    mixers = {i: mixer for i, mixer in enumerate(model.mixers) if isinstance(mixer, Plga) and mixer.traits.calibrates}
    with progress("reading", count * (tokens + 2), "passes") as advance:
        whole, halves, one_block, sequential = [], [], [], []
        for document_T in documents_NT:
            whole.append(_deduced(model, document_T))
            halves.append(_deduced(model, document_T[: tokens // 2]))
            one_block.append(model.losses(document_T[None]).mean())
            advance(3)
            for end in range(2, tokens + 1):
                sequential.append(model.losses(document_T[None, :end])[0, -1])
                advance(1)
    layers = []
    for place, (index, mixer) in enumerate(mixers.items()):
        rank_a, rank_a_lm = (
            rank_range(rank for outputs in whole for rank in numerical_ranks(outputs[place][name]))
            for name in OUTPUTS[:2]
        )
        shares = not_commuting(whole[0][place]["G"], mixer.rotary)
        layers.append(LayerCriticality(index, mixer.head_dim, rank_a, rank_a_lm, shares))
    return Criticality(
        name,
        text,
        count,
        tokens,
        _dependence(list(pairwise(whole)), list(mixers)),
        _dependence(list(zip(halves, whole, strict=True)), list(mixers)),
        layers,
        float(torch.stack(one_block).mean()),
        float(torch.stack(sequential).mean()),
    )


def _deduced(model: InspectedModel, tokens_T: Tensor) -> Deduced:
    outputs = model.auxiliary_outputs(tokens_T[None])
    return [{name: layer[name][0].cpu().double() for name in OUTPUTS} for layer in outputs if OUTPUTS[0] in layer]


def _dependence(pairs: Sequence[tuple[Deduced, Deduced]], layers: Sequence[int]) -> dict[str, TextDependence]:
    """The mean order parameters over the pairs; `layers`: the index of each layer."""
    dependence = {}
    for name in OUTPUTS:
        means = []
        for place in (slice(None), *(slice(i, i + 1) for i in range(len(layers)))):  # all layers, then each one
            every = [
                order_parameter(*(torch.cat([layer[name].flatten() for layer in text[place]]) for text in pair))
                for pair in pairs
            ]
            rms, signed = (sum(values) / len(every) for values in zip(*map(astuple, every), strict=True))
            means.append(OrderParameter(rms, signed))
        dependence[name] = TextDependence(means[0], dict(zip(layers, means[1:], strict=True)))
    return dependence


def _order_table(found: Criticality) -> Table:
    rows: list[Sequence[str]] = []
    for name, between in found.between_texts.items():
        recomputed = found.recomputed[name]
        pairs = {name: (between.overall, recomputed.overall)}
        pairs |= {f"  layer {n}": (parameter, recomputed.layers[n]) for n, parameter in between.layers.items()}
        for label, parameters in pairs.items():
            rows.append((label, *(f"{value:.3g}" for one in parameters for value in (one.rms, one.signed))))
    return Table(
        "Order parameter",
        ("", "two texts: of RMS", "of |mean|", "cached, recomputed: of RMS", "of |mean|"),
        rows,
        f"RMS of the difference, relative to the output's size: between {found.documents} documents of {found.tokens}"
        " tokens, and between the first half of each and all of it. Small in a critical model.",
    )


def _matrix_table(found: Criticality) -> Table:
    rows = []
    for one in found.layers:
        shares = f"{min(one.not_commuting):.2f} to {max(one.not_commuting):.2f}"
        rows.append((f"layer {one.layer}", range_text(one.rank_a), range_text(one.rank_a_lm), shares))
    widths = ", ".join(str(width) for width in dict.fromkeys(one.head_width for one in found.layers))
    return Table(
        "Matrices",
        ("", f"rank of A, of {widths}", "rank of A_LM", "G: does not commute"),
        rows,
        "Rank: singular values above the head's width x 1.2e-7 of the largest. G: the share, in Frobenius norm, that"
        " does not commute with rotary positions, over the heads. Author's trained model: rank 1; 0.42 to 0.99.",
    )


CRITICALITY = Inspection(
    "criticality",
    """Measure how close power-law graph attention is to a critical state, as its author does (arXiv 2603.23539).

    Shows the order parameter, which is how much each deductive output depends on the text and on the text after a
    prompt; the numerical rank of A and A_LM; the share of G that does not commute with rotary positions; and the loss
    in one block beside the loss token by token.

    Example: linnet inspect criticality runs/pldr --data data/stories

    Example: linnet inspect criticality runs/pldr --data data/stories --documents 32 --tokens 128 --json
    """,
    CriticalityOptions,
    inspect_criticality,
    data="required",
    applies=deduces,
)
