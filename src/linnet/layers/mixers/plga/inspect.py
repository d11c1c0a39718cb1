"""`linnet inspect operator`, `invariance` and `caches`: the deductive outputs of power-law graph attention.

Shapes: `H` heads, `K` head width, `N` prompts, `T` tokens of a prompt.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.core.spec import Seed, Spec
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.inspection import InspectedModel, Inspection, InspectionTarget
from linnet.layers.mixers.plga.criticality import CRITICALITY, deduces, load_plga
from linnet.layers.mixers.plga.files import SUFFIXES, read_operators, save_operators
from linnet.layers.mixers.plga.matrices import (
    DeductiveFigures,
    OutputFigures,
    determinant_figures,
    operator_figures,
    power_of_ten,
    range_text,
    rank_range,
)
from linnet.layers.mixers.plga.module import Plga
from linnet.layers.mixers.plga.operator import OUTPUTS
from linnet.present import numbers
from linnet.present.plot import COLOR_PERCENTILE, Axis, HeatMaps, Panel, Plot, Series
from linnet.present.progress import Advance, progress
from linnet.present.result import Picture, Result
from linnet.present.table import Table

DIGITS, ALL_DIGITS = 6, 15
CAPTIONS = {
    "A": "Paper: rank one with equal rows, so it shows vertical stripes only.",
    "A_LM": "Never negative. Paper: singular.",
    "A_P": "The powers of A_LM: never negative, 1 where the power is 0.",
    "G": "The operator between query and key. The identity is plain attention.",
}
SETTINGS: tuple[tuple[bool, CachePolicy], ...] = (
    (True, FULL),
    (True, RecalibratingCache()),
    (False, FULL),
    (False, RecalibratingCache()),
)
"""KV-cache and G-cache. The first setting has both; the others are compared with it."""

Deduced = dict[tuple[str, int], Tensor]
"""Deductive outputs by name and layer index."""

Operators = list[dict[str, Tensor]]
"""The deductive outputs of each plga layer, `[H, K, K]` by name; a fixed operator is the only one of its layer."""


def operators_from(outputs: Iterable[Mapping[str, Tensor]]) -> Operators:
    """The deductive outputs of one text among the auxiliary outputs of all layers."""
    layers = ({name: x_1HKK[0] for name, x_1HKK in layer.items() if name in OUTPUTS} for layer in outputs)
    return [layer for layer in layers if layer]


def operators(model: InspectedModel, tokens_1T: Tensor) -> Operators:
    """The deductive outputs for one text, and fixed operators."""
    return operators_from(model.auxiliary_outputs(tokens_1T))


@dataclass(frozen=True)
class LoadedOperators:
    """The operators of a model or a file. origin: in words. prompt: the text that they were deduced from, or None."""

    layers: Operators
    origin: str
    in_file: bool = False
    prompt: str | None = None
    prompt_tokens: int | None = None

    @property
    def shape(self) -> str:
        """In words: `5 layers, 14 heads of 64 x 64`."""
        shapes = dict.fromkeys(tuple(layer["G"].shape[:2]) for layer in self.layers)
        heads = " and ".join(f"{count} head{'s' * (count > 1)} of {width} x {width}" for count, width in shapes)
        return f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)}, {heads}"


def load_operators(target: InspectionTarget, prompt: str | None = None) -> LoadedOperators:
    """Read a file of operators, or let a model deduce its operators from a prompt, by default the end token alone.

    `UserError` if the target is neither, has no operator, or has a prompt but deduces nothing.
    """
    source = Path(target.source)
    if source.is_file() or source.suffix in SUFFIXES:
        if prompt is not None:
            problem = f"{source} is a file, its operators are not deduced from a text"
            raise UserError(problem, field="prompt", value=repr(prompt))
        return LoadedOperators(read_operators(source), "read from the file", in_file=True)
    model = load_plga(target, deducing=False)
    if deduces(model):
        tokens = model.prompt_tokens(prompt or "")
        model.check_positions(len(tokens), "prompt")
        origin = f"deduced from {prompt!r}" if prompt else "deduced from the empty prompt, the end token alone"
        deduced = operators(model, torch.tensor([tokens]))
        return LoadedOperators(deduced, origin, prompt=prompt or "", prompt_tokens=len(tokens))
    if prompt is not None:
        problem = f"the operators of {source} are fixed, not deduced from a text"
        raise UserError(problem, field="prompt", value=repr(prompt))
    return LoadedOperators(operators(model, torch.tensor([model.prompt_tokens("")])), "fixed in the model")


class OperatorOptions(Spec):
    """Options of `linnet inspect operator`."""

    prompt: str | None = Field(None, description="Deduce the operators from this text; by default the end token.")
    save: Path | None = Field(None, description="Save the model's operators into this file, as .safetensors.")
    rank_tolerance: float | None = Field(
        None,
        ge=0,
        description="Count singular values above this share of the largest; by default the rounding.",
    )


@dataclass(frozen=True)
class OperatorResult(Result):
    """The deductive outputs of a model or a file."""

    source: str
    operators: LoadedOperators
    figures: DeductiveFigures

    def title(self) -> str:
        return f"Operators of {self.source}"

    def facts(self) -> dict[str, str]:
        return {"operators": f"{self.operators.shape}; {self.operators.origin}"}

    def tables(self) -> list[Table]:
        return operator_tables(self.figures)

    def plots(self) -> list[Picture]:
        return operator_pictures(self.figures, self.operators.layers)

    def to_dict(self) -> dict[str, Any]:
        prompt = {"prompt": self.operators.prompt, "prompt_tokens": self.operators.prompt_tokens}
        return {"source": self.source, **prompt, **self.figures.figures()}


def inspect_operator(target: InspectionTarget, options: OperatorOptions) -> OperatorResult:
    """Compute the figures of the deductive outputs, and save the outputs if requested."""
    if options.save is not None and options.save.suffix != ".safetensors":
        raise UserError("expected a name that ends in .safetensors", field="save", value=options.save)
    loaded = load_operators(target, options.prompt)
    if options.save is not None:
        if loaded.in_file:
            problem = f"{target.source} is a file of operators; expected a model"
            raise UserError(problem, field="save", value=options.save)
        save_operators(loaded.layers, options.save)
    return OperatorResult(target.source, loaded, operator_figures(loaded.layers, options.rank_tolerance))


def number(value: float | None, missing: str = "none", digits: int = DIGITS) -> str:
    """A table cell with `digits` significant digits; `missing` for None, words for infinity and NaN."""
    if value is None:
        return missing
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite" if math.isnan(value) else "infinite"


def determinant(log10: float, digits: int = DIGITS) -> str:
    """A |det| as a table cell, from its logarithm; as a power of ten if it overflows or underflows."""
    if math.isnan(log10):
        return "not finite"
    value = power_of_ten(log10)
    if value is None:
        return f"overflow, 10^{log10:.{digits}g}"
    return f"{value:.{digits}g}" if value > 0 or log10 == -math.inf else f"underflow, 10^{log10:.{digits}g}"


def operator_tables(figures: DeductiveFigures) -> list[Table]:
    """A table of all outputs, one of A, and one of the singular values of A_LM, for those that are present."""
    outputs = {output.name: output for output in figures.outputs}
    tables = [_outputs_table(figures)]
    if "A" in outputs:
        tables.append(_rank_one_table(outputs["A"]))
    if "A_LM" in outputs:
        rows = [(f"layer {layer.layer}", *map(number, layer.singular_ends)) for layer in outputs["A_LM"].layers]
        meaning = (
            "Over the heads of a layer; the condition number is the largest of all heads. Paper: A_LM is singular. The"
            " JSON has all singular values."
        )
        columns = ("", "largest", "smallest", "condition number")
        tables.append(Table("A_LM: singular values", columns, rows, meaning))
    return tables


def _outputs_table(figures: DeductiveFigures) -> Table:
    rows: list[Sequence[str]] = []
    for output in figures.outputs:
        of_output = [(output.name, output.rmse, output.log10_max_abs_det, [r for x in output.layers for r in x.ranks])]
        of_output += [
            (f"  layer {layer.layer}", layer.between_heads.rmse, layer.log10_max_abs_det, layer.ranks)
            for layer in output.layers
        ]
        for label, rmse, log10, ranks in of_output:
            rows.append((label, number(rmse, "one head"), determinant(log10), range_text(rank_range(ranks))))
    return Table(
        "Deductive outputs",
        ("", "RMSE between heads", "largest |det|", "rank"),
        rows,
        "RMSE: the differences between the heads of a layer. Determinants in float64. Rank: singular values above"
        f" {figures.rank_tolerance:.2g} of the largest, over the heads. Paper: A is rank one, A_LM is singular.",
    )


def _rank_one_table(a: OutputFigures) -> Table:
    rows = []
    for layer in a.layers:
        assert layer.eigen is not None
        radii = layer.eigen.radii
        head = max(range(len(radii)), key=lambda i: -math.inf if math.isnan(radii[i]) else radii[i])
        value = layer.eigen.values[head]
        text = number(value.real) if value.imag == 0 else f"{number(value.real)} ± {number(abs(value.imag))}i"
        sums = number(layer.eigen.row_sums[head]), number(layer.eigen.between_rows.rmse)
        rows.append((f"layer {layer.layer}, head {head}", number(radii[head]), text, *sums))
    return Table(
        "A: is it rank one?",
        ("", "spectral radius", "largest eigenvalue", "mean row sum", "RMSE between rows, all heads"),
        rows,
        "The head with the largest spectral radius in each layer. Paper: all rows of A are equal up to about 1e-9, so"
        " its only nonzero eigenvalue is close to its row sum.",
    )


def operator_pictures(figures: DeductiveFigures, layers: Operators) -> list[Picture]:
    """A heat map of each deductive output, and the singular values of A_LM."""
    scale = (
        f"A row for each layer, with its own scale; {100 - COLOR_PERCENTILE:g} % of the elements are beyond its end."
    )
    pictures = []
    for name in OUTPUTS:
        matrices = {n: layer[name].double().cpu().numpy() for n, layer in enumerate(layers) if name in layer}
        if matrices:
            widths = " and ".join(f"{width} x {width}" for width in sorted({x.shape[1] for x in matrices.values()}))
            title = f"{name} of every head, {widths}"
            pictures.append(Picture(name, title, HeatMaps(matrices), f"{CAPTIONS[name]} {scale}"))
    for output in figures.outputs:
        if output.name == "A_LM":
            curves = singular_value_curves({layer.layer: layer.singular_HK for layer in output.layers})
            caption = "A line for each head. The last values of a singular matrix are much smaller: they are rounding."
            pictures.append(Picture("singular_values", "Singular values of A_LM", curves, caption))
    return pictures


def singular_value_curves(singular_LHK: Mapping[int, Sequence[Sequence[float]]]) -> Plot:
    """Singular values `[H, K]`, descending, by layer index: a panel for each layer, a line for each head."""
    x, y = Axis("singular value, largest first"), Axis("", "log", numbers.scientific)
    panels = [
        Panel(x, y, [_positive(range(1, len(values) + 1), values, head) for head, values in enumerate(heads)], title)
        for title, heads in ((f"layer {number}", heads) for number, heads in singular_LHK.items())
    ]
    return Plot(panels, (4.4, 3.2), columns=min(3, len(panels)), shared="y")


@dataclass(frozen=True)
class Variation:
    """`||X - mean|| / ||mean||` over prompts, in Frobenius norms: the root mean square and the maximum."""

    rms: float
    largest: float

    @classmethod
    def measure(cls, squared_distances: Sequence[float], squared_size: float) -> "Variation":
        """From the squared distance of each prompt's output from the mean, and the squared size of the mean."""
        if squared_size == 0 or not math.isfinite(sum(squared_distances)):
            return cls(math.nan, math.nan)
        mean = sum(squared_distances) / len(squared_distances)
        return cls(math.sqrt(mean / squared_size), math.sqrt(max(squared_distances) / squared_size))


@dataclass(frozen=True)
class OutputVariation:
    """One deductive output: over all layers together, and of each layer that has it, by its index."""

    name: str
    overall: Variation
    layers: dict[int, Variation]


class InvarianceOptions(Spec):
    """Options of `linnet inspect invariance`."""

    prompts: Annotated[int, Field(ge=2)] = Field(100, description="Documents to draw, or all that are long enough.")
    tokens: Annotated[int, Field(ge=2)] = Field(
        64, description="Tokens of each document, the end token before it included."
    )
    seed: Seed = Field(0, description="Decides which documents are drawn.")


@dataclass(frozen=True)
class Invariance(Result):
    """The variation of each deductive output over prompts; `tokens`: of each prompt."""

    prompts: int
    tokens: int
    outputs: list[OutputVariation]
    model: str = ""
    data: str = ""
    split: str = ""
    seed: int = 0

    def title(self) -> str:
        return f"Invariance of {self.model}"

    def facts(self) -> dict[str, str]:
        return {"text": f"documents of the {self.split} split of {self.data}, drawn with seed {self.seed}"}

    def tables(self) -> list[Table]:
        rows = []
        for output in self.outputs:
            variations = {output.name: output.overall}
            variations |= {f"  layer {layer}": variation for layer, variation in output.layers.items()}
            rows += [(label, number(one.rms), number(one.largest)) for label, one in variations.items()]
        meaning = (
            f"||X - mean|| / ||mean|| over {self.prompts} prompts of {self.tokens} tokens (Frobenius norms); 0: no"
            " variation. Paper: the operator of a trained model hardly depends on the text."
        )
        return [Table("Variation over prompts", ("", "RMS", "largest"), rows, meaning)]

    def plots(self) -> list[Picture]:
        rms = {output.name: {layer: one.rms for layer, one in output.layers.items()} for output in self.outputs}
        caption = (
            "RMS over the prompts, relative to the size of the mean, on a logarithmic axis. The lower, the less the"
            " operator depends on the text. Points are missing where it does not vary."
        )
        return [Picture("variation", "Variation of each layer", variation_points(rms), caption)]

    def to_dict(self) -> dict[str, Any]:
        text = {"model": self.model, "data": self.data, "split": self.split, "seed": self.seed}
        named: dict[str, Any] = {}
        for output in self.outputs:
            per_layer = [{"layer": n, "variation": one.rms, "largest": one.largest} for n, one in output.layers.items()]
            overall = {"variation": output.overall.rms, "largest": output.overall.largest}
            named[output.name] = json_safe({**overall, "per_layer": per_layer})
        return {**text, "prompts": self.prompts, "tokens": self.tokens, **named}


def inspect_invariance(target: InspectionTarget, options: InvarianceOptions) -> Invariance:
    """Measure a model over the beginnings of documents; `UserError` if it deduces no operator."""
    model = load_plga(target, deducing=True)
    model.check_positions(options.tokens, "tokens")
    measured = invariance(model, model.documents(options.prompts, options.tokens, options.seed))
    return replace(measured, model=target.source, data=str(target.data), split=target.split, seed=options.seed)


def invariance(model: InspectedModel, prompts_NT: Tensor) -> Invariance:
    """The variation over prompts `[N, T]`, in float64; fixed operators are left out.

    Prompts are read one at a time, so that the same prompt gives the same operator to the bit.
    """

    def read(advance: Advance) -> Iterator[Deduced]:
        for prompt_T in prompts_NT:
            layers = enumerate(operators(model, prompt_T[None]))
            yield {(name, i): x.double() for i, layer in layers if len(layer) > 1 for name, x in layer.items()}
            advance(1)

    count = len(prompts_NT)
    with progress("deducing operators", 2 * count, "prompts") as advance:
        # Two passes, for the means and for the distances from them, so that memory does not grow with the prompts. A
        # mean is the first output and the mean difference from it, which is exact if nothing differs.
        outputs = read(advance)
        first = next(outputs)
        sums = {key: torch.zeros_like(x_HKK) for key, x_HKK in first.items()}
        for later in outputs:
            for key, x_HKK in later.items():
                sums[key] += x_HKK - first[key]
        means = {key: x_HKK + sums[key] / count for key, x_HKK in first.items()}
        squares: dict[tuple[str, int], list[float]] = {key: [] for key in means}
        for later in read(advance):
            for key, x_HKK in later.items():
                squares[key].append(float((x_HKK - means[key]).square().sum()))
    sizes = {key: float(mean_HKK.square().sum()) for key, mean_HKK in means.items()}
    variations = []
    for name in dict.fromkeys(name for name, _ in means):
        keys = [key for key in means if key[0] == name]
        together = [sum(of_prompt) for of_prompt in zip(*(squares[key] for key in keys), strict=True)]
        overall = Variation.measure(together, sum(sizes[key] for key in keys))
        layers = {key[1]: Variation.measure(squares[key], sizes[key]) for key in keys}
        variations.append(OutputVariation(name, overall, layers))
    return Invariance(count, prompts_NT.shape[1], variations)


def variation_points(variation: Mapping[str, Mapping[int, float]]) -> Plot:
    """The variation of each deductive output by name and layer index, without points where it is 0."""
    layers = sorted({number for by_layer in variation.values() for number in by_layer})
    drawn = [
        _positive(list(by_layer), list(by_layer.values()), number, name, "o-")
        for number, (name, by_layer) in enumerate(variation.items())
    ]
    x = Axis("layer", places={number: str(number) for number in layers})
    y = Axis("variation over the prompts, RMS", "log", numbers.scientific)
    return Plot([Panel(x, y, drawn)], (max(6.0, 0.4 * len(layers) + 3), 4.4))


def _positive(x: Sequence[int], y: Sequence[float], color: int, name: str = "", style: str = "-") -> Series:
    """A series without the values that a logarithmic axis cannot show."""
    return Series(x, [value if value > 0 else math.nan for value in y], name, style, color)


@dataclass(frozen=True)
class CacheRun:
    """The result of one setting.

    ids: the tokens of the continuation. first_difference: the index of the first different token, None for none.
    distances: of each deductive output by name from that with both caches, relative to its size (Frobenius norms).
    """

    kv_cache: bool
    g_cache: bool
    ids: list[int]
    text: str
    first_difference: int | None
    outputs: list[OutputFigures]
    distances: dict[str, float]

    @property
    def label(self) -> str:
        """The caches that are on: `KV and G`, `KV`, `G`, `none`."""
        return " and ".join(name for name, on in (("KV", self.kv_cache), ("G", self.g_cache)) if on) or "none"

    def figures(self) -> dict[str, Any]:
        """The figures for JSON."""
        named = {
            one.name: {
                "rmse": one.rmse,
                **determinant_figures(one.log10_max_abs_det),
                "distance": self.distances[one.name],
            }
            for one in self.outputs
        }
        return {
            "kv_cache": self.kv_cache,
            "g_cache": self.g_cache,
            "tokens": len(self.ids),
            "same_text": self.first_difference is None,
            "first_difference": self.first_difference,
            "text": self.text,
            **json_safe(named),
        }


@dataclass(frozen=True)
class CacheComparison(Result):
    """The four settings, in the order of `SETTINGS`."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    runs: list[CacheRun]
    model: str = ""

    def title(self) -> str:
        return f"Caches of {self.model}"

    def facts(self) -> dict[str, str]:
        return {"prompt": repr(self.prompt) if self.prompt else "the empty prompt"}

    def tables(self) -> list[Table]:
        texts = []
        for run in self.runs:
            first = run.first_difference
            text = "the same" if first is None else f"different from token {first + 1} on"
            texts.append((run.label, numbers.grouped(len(run.ids)), text))
        meaning = (
            f"The prompt, {self.prompt_tokens} token{'s' * (self.prompt_tokens > 1)} with the end token before it, is"
            f" continued by the likeliest token, at most {self.max_tokens} times. Compared with both caches."
        )
        tables = [Table("Text", ("caches", "tokens", "text"), texts, meaning)]
        cells: dict[str, tuple[Callable[[CacheRun, OutputFigures], str], str]] = {
            "RMSE between heads": (
                lambda run, output: number(output.rmse, "one head", ALL_DIGITS),
                "For the outputs as last deduced: without any cache from the text without its last token, else from the"
                " prompt. Paper: the same to about 15 digits.",
            ),
            "Largest |det|": (
                lambda run, output: determinant(output.log10_max_abs_det),
                "In float64. The determinant of a nearly singular matrix is rounding and cannot be compared.",
            ),
            "Distance": (
                lambda run, output: number(run.distances[output.name]),
                "From the outputs with both caches, relative to their size: how much the operator would change with the"
                " generated text.",
            ),
        }
        columns = ("caches", *(output.name for output in self.runs[0].outputs))
        for title, (cell, meaning) in cells.items():
            rows = [(run.label, *(cell(run, output) for output in run.outputs)) for run in self.runs]
            tables.append(Table(title, columns, rows, meaning))
        return tables

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": self.prompt,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "same_text": all(run.first_difference is None for run in self.runs),
            "settings": [run.figures() for run in self.runs],
        }


class CachesOptions(Spec):
    """Options of `linnet inspect caches`."""

    prompt: str = Field("", description="The text to continue.")
    tokens: Annotated[int, Field(ge=1, le=1 << 14)] = Field(
        100, description="Stop after this many tokens, if the text has not ended."
    )


def inspect_caches(target: InspectionTarget, options: CachesOptions) -> CacheComparison:
    """Compare the four settings; `UserError` if the model deduces no operator."""
    model = load_plga(target, deducing=True)
    return replace(compare_caches(model, options.prompt, options.tokens), model=target.source)


def compare_caches(model: InspectedModel, prompt: str, max_tokens: int) -> CacheComparison:
    """Continue the prompt with each setting by up to `max_tokens` tokens, always by the likeliest.

    The operators that were deduced last are compared: from the prompt if the G-cache stores them or the KV-cache the
    prompt's A, from the whole text without its last token if no cache is used.
    """
    with progress("generating", len(SETTINGS) * max_tokens, "tokens") as advance:
        continued = [_continued(model, prompt, max_tokens, *setting, advance) for setting in SETTINGS]
    first_ids, first_layers = continued[0]
    runs = [
        CacheRun(
            kv_cache,
            policy == FULL,
            ids,
            model.tokenizer.decode(ids),
            first_difference(first_ids, ids),
            operator_figures(layers).outputs,
            distances(layers, first_layers),
        )
        for (kv_cache, policy), (ids, layers) in zip(SETTINGS, continued, strict=True)
    ]
    return CacheComparison(prompt, len(model.prompt_tokens(prompt)), max_tokens, runs)


def _continued(
    model: InspectedModel, prompt: str, max_tokens: int, kv_cache: bool, policy: CachePolicy, advance: Advance
) -> tuple[list[int], Operators]:
    """The tokens of the continuation, and the operators that were deduced last."""
    ids: list[int] = []
    layers: Operators = []
    for token, outputs in model.continue_prompt(prompt, max_tokens, kv_cache, policy):
        if any(len(layer) > 1 for layer in outputs):
            layers = operators_from(outputs)
        if token is not None:
            ids.append(token)
        advance(1)
    return ids, layers


def first_difference(first: Sequence[int], other: Sequence[int]) -> int | None:
    """The index of the first token that differs, or that only one text has; None for equal texts."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))
    return None if same == len(first) == len(other) else same


def distances(layers: Operators, from_layers: Operators) -> dict[str, float]:
    """`||X - Y|| / ||Y||` of each deductive output over all layers; NaN if Y is 0 or not finite."""
    relative = {}
    for name in dict.fromkeys(name for layer in layers for name in layer):
        pairs = [(x[name].double(), y[name].double()) for x, y in zip(layers, from_layers, strict=True) if name in x]
        size = sum(float(y.square().sum()) for _, y in pairs)
        difference = sum(float((x - y).square().sum()) for x, y in pairs)
        relative[name] = math.sqrt(difference / size) if size > 0 and math.isfinite(difference) else math.nan
    return relative


INSPECTIONS = [
    Inspection(
        "operator",
        """Show the matrices that power-law graph attention deduces from a text: A, A_LM, A_P and the operator G.

    Shows the differences between heads, determinants and ranks; whether A is rank one; and the singular values of A_LM,
    as the PLDR-LLM paper reports them, in float64. A file may hold G alone, under the names 0, 1, ... or layer0.G, ...

    Example: linnet inspect operator runs/pldr --out inspected

    Example: linnet inspect operator runs/pldr --prompt "Once upon a time" --save operator.safetensors

    Example: linnet inspect operator operator.npz --json
    """,
        OperatorOptions,
        inspect_operator,
        source="MODEL|FILE",
        applies=lambda model: any(isinstance(mixer, Plga) for mixer in model.mixers),
    ),
    Inspection(
        "invariance",
        """Measure how much the operator of power-law graph attention varies with the text, relative to its size.

    The paper's claim is that a trained operator hardly depends on its input, so that it can be stored and its network
    removed. This measures the variation over the beginnings of documents, for each deductive output and layer.

    Example: linnet inspect invariance runs/pldr --data data/stories

    Example: linnet inspect invariance runs/pldr --data data/stories --prompts 20 --tokens 16 --out inspected
    """,
        InvarianceOptions,
        inspect_invariance,
        data="required",
        applies=deduces,
    ),
    Inspection(
        "caches",
        """Compare generation with and without the KV-cache and the G-cache, as the PLDR-LLM paper does.

    The same prompt is continued with each of the four settings, by the likeliest token. Shows whether the text stays
    the same, and the deductive outputs at the end of each.

    Example: linnet inspect caches runs/pldr --prompt "Once upon a time" --tokens 100
    """,
        CachesOptions,
        inspect_caches,
        applies=deduces,
    ),
    CRITICALITY,
]
"""The inspections of this kind (`layers.registry`)."""
