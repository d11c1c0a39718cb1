"""The comparison of contexts as rows of text, and what follows from it."""

from linnet.inspection.contexts.measure import CachePolicyComparison
from linnet.present import numbers
from linnet.present.table import Table


def contexts_tables(found: CachePolicyComparison) -> list[Table]:
    """Quality against memory, and the contexts of each layer."""
    return [_quality_table(found), _layers_table(found)]


def _quality_table(found: CachePolicyComparison) -> Table:
    rows = [
        (
            one.name,
            f"{one.bits_per_byte:.4f}",
            numbers.signed(one.difference, 5),
            "one window" if one.standard_error is None else f"{one.standard_error:.5f}",
            f"{numbers.signed(one.worse_percent, 2)} %",
            f"{one.average_context:,.1f}",
            numbers.grouped(one.largest_context),
            numbers.binary(one.state_bytes),
        )
        for one in found.outcomes
    ]
    return Table(
        "Quality against memory",
        ("", "bits per byte", "worse by", "±", "", "average context", "largest context", "state"),
        rows,
        f"Over {numbers.grouped(found.tokens)} tokens in {found.windows} windows of at most"
        f" {numbers.grouped(found.context_length)}, causal. Worse by: bits per byte more than with all tokens, on the"
        " same text; ± its standard error over the windows. Context: vectors held after each token, averaged over"
        " tokens and layers, and the most in one layer. State: average bytes of one stream in these layers.",
    )


def _layers_table(found: CachePolicyComparison) -> Table:
    rows = [(one.name, *(f"{layer.average_context:,.1f}" for layer in one.layers)) for one in found.outcomes]
    return Table(
        "Average context of each layer",
        ("", *(f"layer {layer.layer}" for layer in found.full.layers)),
        rows,
        "Vectors held after each token, averaged over all tokens. The slower a layer's tokens fade, the more of them"
        " are above a threshold. ",
    )


def conclusion(found: CachePolicyComparison) -> str:
    """The smallest state that loses nothing, in one line."""
    best, full, within = found.smallest, found.full, f"{numbers.exact(found.within_percent)} %"
    if best is full:
        return f"No smaller state stays within {within} of all tokens (full): {numbers.binary(full.state_bytes)}."
    error = "" if best.standard_error is None else f" ± {best.standard_error:.5f}"
    loss = f"{numbers.signed(best.difference, 5)}{error}"
    share = numbers.ratio(100 * best.state_bytes, full.state_bytes)
    line = (
        f"The smallest state within {within} of all tokens: {best.name}, {numbers.binary(best.state_bytes)} on average,"
        f" {share} % of all tokens' {numbers.binary(full.state_bytes)}; {loss} bits per byte."
    )
    if best.standard_error is None or best.standard_error > full.bits_per_byte * found.within_percent / 100:
        line += " Its error is larger than that limit: read more windows."
    if best.context.series is not None:
        tried = best.context.series[0]
        if best is min(found.lines[tried], key=lambda one: one.state_bytes):
            line += f" Nothing smaller was tried with {tried}."
    return line
