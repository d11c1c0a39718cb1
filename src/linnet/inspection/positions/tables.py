"""Loss by position as rows of text."""

from linnet.inspection.positions.measure import PositionLosses, RangeLoss
from linnet.present import numbers
from linnet.present.table import Table


def positions_tables(found: PositionLosses) -> list[Table]:
    """A row for each part of a window, a column for each way of reading."""
    rows = []
    for parts in zip(*(one.parts for one in found.variants), strict=True):
        begin, end = parts[0].begin, parts[0].end
        place = f"{numbers.grouped(begin)} to {numbers.grouped(end)}"
        rows.append((place, f"{end / found.trained:g}", *map(_said, parts)))
    return [
        Table(
            "Bits per byte by position",
            ("positions", "times trained", *(one.name for one in found.variants)),
            rows,
            f"Over {found.windows} windows of {numbers.grouped(found.tokens)} tokens, trained on sequences of"
            f" {numbers.grouped(found.trained)}; ± standard error over the windows. Times trained: where the row ends."
            " All ways read the same text.",
        )
    ]


def conclusion(found: PositionLosses) -> str:
    """How the last part compares with the last within the trained length, in a line."""
    plain = found.variants[0].parts
    within = [part for part in plain if part.end <= found.trained]
    if not within or plain[-1].end <= found.trained:
        return ""
    best = min(found.variants, key=lambda one: one.parts[-1].bits_per_byte)
    said = f"At the end of the trained length {within[-1].bits_per_byte:.4f} bits per byte; at the end of the windows"
    line = f"{said} {plain[-1].bits_per_byte:.4f} {found.variants[0].name}"
    return f"{line}." if best is found.variants[0] else f"{line}, {best.parts[-1].bits_per_byte:.4f} {best.name}."


def _said(part: RangeLoss) -> str:
    error = "" if part.standard_error is None else f" ± {part.standard_error:.4f}"
    return f"{part.bits_per_byte:.4f}{error}"
