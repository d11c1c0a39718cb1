"""How near power-law graph attention is to a critical state, after Gokden (arXiv 2603.23539 and 2608.10288).

In the author's critical models the deductive outputs hardly depend on the text, A has rank one, and G commutes little
with rotary positions. The definitions are those of the author's published audit; the code is not.

Shapes: `H` heads, `K` head width, `N` documents, `T` tokens of a document.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.core.spec import Seed, Spec
from linnet.layers.inspection import InspectedModel, Inspection, InspectionTarget
from linnet.layers.mixers.plga.matrices import ranks, singular_values
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
    """How much an output differs between two texts: the RMS of the difference, relative to its size.

    rms: over the mean of both RMS. signed: over the |mean| of the first, which is small where signs cancel.
    """

    rms: float
    signed: float

    def figures(self) -> dict[str, Any]:
        return dict(json_safe({"rms": self.rms, "signed": self.signed}))


def order_parameter(x: Tensor, y: Tensor) -> OrderParameter:
    """Of two tensors of one shape, in float64; NaN where both are zero."""
    x, y = x.double(), y.double()
    difference, size = _rms(x - y), (_rms(x) + _rms(y)) / 2
    return OrderParameter(float(difference / size), float(difference / x.mean().abs()))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def numerical_ranks(x_HKK: Tensor) -> list[int | None]:
    """How many singular values of each head are above K times the rounding of float32 times the largest."""
    return ranks(singular_values(x_HKK), x_HKK.shape[-1] * torch.finfo(torch.float32).eps)


def rotary_commutant(g_HKK: Tensor, rotary: RotarySpec | None) -> Tensor:
    """The part of each matrix that commutes with the rotation of every position: the nearest one in Frobenius norm.

    Pairs turn at different speeds, so no part between two pairs, or a pair and what is not turned, commutes. Within a
    pair a multiple of a rotation does. What is not turned keeps all of its own block.
    """
    if rotary is None:
        return g_HKK
    width = rotary.width(g_HKK.shape[-1])
    numbers_W = torch.arange(width)
    pairs_2P = numbers_W.view(-1, 2).T if rotary.pairing == "adjacent" else numbers_W.view(2, -1)
    first, second = pairs_2P
    kept_HKK = torch.zeros_like(g_HKK)
    same_HP = (g_HKK[:, first, first] + g_HKK[:, second, second]) / 2
    turn_HP = (g_HKK[:, second, first] - g_HKK[:, first, second]) / 2
    kept_HKK[:, first, first] = kept_HKK[:, second, second] = same_HP
    kept_HKK[:, second, first], kept_HKK[:, first, second] = turn_HP, -turn_HP
    kept_HKK[:, width:, width:] = g_HKK[:, width:, width:]
    return kept_HKK


def not_commuting(g_HKK: Tensor, rotary: RotarySpec | None) -> list[float]:
    """The share of each head's G, in Frobenius norm, that does not commute with rotary positions; NaN for zero."""
    g_HKK = g_HKK.detach().cpu().double()
    rest_H = torch.linalg.matrix_norm(g_HKK - rotary_commutant(g_HKK, rotary))
    shares: list[float] = (rest_H / torch.linalg.matrix_norm(g_HKK)).tolist()
    return shares


@dataclass(frozen=True)
class LayerCriticality:
    """One layer: the ranks of A and A_LM over heads and documents, and of each head what of G does not commute."""

    layer: int
    width: int
    rank_a: tuple[int | None, int | None]
    rank_a_lm: tuple[int | None, int | None]
    not_commuting: list[float]

    def figures(self) -> dict[str, Any]:
        ranked = {
            name: {"smallest": least, "largest": most}
            for name, (least, most) in (("rank_a", self.rank_a), ("rank_a_lm", self.rank_a_lm))
        }
        return {
            "layer": self.layer,
            "head_width": self.width,
            **ranked,
            "not_commuting": json_safe(self.not_commuting),
        }


@dataclass(frozen=True)
class TextDependence:
    """The order parameters of one output: over all layers together, and of each layer by its number."""

    overall: OrderParameter
    layers: dict[int, OrderParameter]

    def figures(self) -> dict[str, Any]:
        per_layer = [{"layer": layer, **found.figures()} for layer, found in self.layers.items()]
        return {**self.overall.figures(), "per_layer": per_layer}


@dataclass(frozen=True)
class Criticality(Result):
    """What was found over so many documents of so many tokens.

    between_texts, recomputed: by deductive output, between two documents, and between the first half of a document
    (what a cache keeps) and all of it. one_block, sequential: nats per token, read in one pass without a state, and
    with each token predicted from a pass over those before it alone.
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
        return [_order_table(self), _matrix_table(self), _loss_table(self)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "documents": self.documents,
            "tokens": self.tokens,
            "between_texts": {name: found.figures() for name, found in self.between_texts.items()},
            "recomputed": {name: found.figures() for name, found in self.recomputed.items()},
            "per_layer": [layer.figures() for layer in self.layers],
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
    model = target.model()
    if not deduces(model):
        raise UserError(f"{target.source}: deduces no operator; expected a model with plga that does")
    model.check_positions(options.tokens, "tokens")
    documents_NT = model.documents(options.documents, options.tokens, options.seed)
    text = f"{len(documents_NT)} documents of the {target.split} split of {target.data}, seed {options.seed}"
    return criticality(model, documents_NT, target.source, text)


def deduces(model: InspectedModel) -> bool:
    """True if a layer of the model deduces its operator from the text."""
    return any(isinstance(mixer, Plga) and mixer.traits.calibrates for mixer in model.mixers)


def criticality(model: InspectedModel, documents_NT: Tensor, name: str = "", text: str = "") -> Criticality:
    """All figures over documents `[N, T]`, at least two; the outputs in float64."""
    count, tokens = documents_NT.shape
    mixers = [mixer for mixer in model.mixers if isinstance(mixer, Plga) and mixer.traits.calibrates]
    numbers_of = [n for n, mixer in enumerate(model.mixers) if isinstance(mixer, Plga) and mixer.traits.calibrates]
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
    for place, (number, mixer) in enumerate(zip(numbers_of, mixers, strict=True)):
        rank_a, rank_a_lm = (
            _span(rank for found in whole for rank in numerical_ranks(found[place][output])) for output in OUTPUTS[:2]
        )
        shares = not_commuting(whole[0][place]["G"], mixer.rotary)
        layers.append(LayerCriticality(number, mixer.head_dim, rank_a, rank_a_lm, shares))
    return Criticality(
        name,
        text,
        count,
        tokens,
        _dependence(list(pairwise(whole)), numbers_of),
        _dependence(list(zip(halves, whole, strict=True)), numbers_of),
        layers,
        float(torch.stack(one_block).mean()),
        float(torch.stack(sequential).mean()),
    )


def _deduced(model: InspectedModel, tokens_T: Tensor) -> Deduced:
    found = model.auxiliary_outputs(tokens_T[None])
    return [{name: layer[name][0].cpu().double() for name in OUTPUTS} for layer in found if OUTPUTS[0] in layer]


def _dependence(pairs: Sequence[tuple[Deduced, Deduced]], layers: Sequence[int]) -> dict[str, TextDependence]:
    """The mean over the pairs."""
    found = {}
    for name in OUTPUTS:
        of_layer = {
            number: _mean(order_parameter(one[place][name], other[place][name]) for one, other in pairs)
            for place, number in enumerate(layers)
        }
        together = _mean(order_parameter(_joined(one, name), _joined(other, name)) for one, other in pairs)
        found[name] = TextDependence(together, of_layer)
    return found


def _joined(layers: Deduced, name: str) -> Tensor:
    return torch.cat([layer[name].flatten() for layer in layers])


def _mean(found: Iterable[OrderParameter]) -> OrderParameter:
    every = list(found)
    rms, signed = (sum(values) / len(every) for values in ([o.rms for o in every], [o.signed for o in every]))
    return OrderParameter(rms, signed)


def _span(found: Iterable[int | None]) -> tuple[int | None, int | None]:
    known = [rank for rank in found if rank is not None]
    return min(known, default=None), max(known, default=None)


def _order_table(found: Criticality) -> Table:
    rows: list[Sequence[str]] = []
    for name, between in found.between_texts.items():
        again = found.recomputed[name]
        rows.append((name, *_cells(between.overall), *_cells(again.overall)))
        rows += [(f"  layer {n}", *_cells(one), *_cells(again.layers[n])) for n, one in between.layers.items()]
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
        least, most = min(one.not_commuting), max(one.not_commuting)
        rows.append((f"layer {one.layer}", *map(_range, (one.rank_a, one.rank_a_lm)), f"{least:.2f} to {most:.2f}"))
    widths = ", ".join(str(width) for width in dict.fromkeys(one.width for one in found.layers))
    return Table(
        "Matrices",
        ("", f"rank of A, of {widths}", "rank of A_LM", "G: does not commute"),
        rows,
        "Rank: singular values above the head's width x 1.2e-7 of the largest. G: the share, in Frobenius norm, that"
        " does not commute with rotary positions, over the heads. Author's trained model: rank 1; 0.42 to 0.99.",
    )


def _loss_table(found: Criticality) -> Table:
    rows = [
        ("one block", f"{found.one_block:.4f}"),
        ("sequential", f"{found.sequential:.4f}"),
        ("difference", numbers.signed(found.sequential - found.one_block, 4)),
    ]
    return Table(
        "Loss",
        ("", "nats per token"),
        rows,
        "One block: one pass over a document, whose operator has seen the tokens to come. Sequential: each token is"
        " predicted from a pass over those before it alone.",
    )


def _cells(found: OrderParameter) -> tuple[str, str]:
    return f"{found.rms:.3g}", f"{found.signed:.3g}"


def _range(found: tuple[int | None, int | None]) -> str:
    least, most = found
    return "not finite" if least is None else str(least) if least == most else f"{least} to {most}"


CRITICALITY = Inspection(
    "criticality",
    """Measure how near power-law graph attention is to a critical state, as its author does (arXiv 2603.23539).

    The order parameter, which is how much each deductive output depends on the text and on what is written after a
    prompt; the numerical rank of A and A_LM; the share of G that does not commute with rotary positions; and the loss
    of a text read in one block beside that of the same text read token by token.

    Example: linnet inspect criticality runs/pldr --data data/stories

    Example: linnet inspect criticality runs/pldr --data data/stories --documents 32 --tokens 128 --json
    """,
    CriticalityOptions,
    inspect_criticality,
    data="required",
    applies=deduces,
)
