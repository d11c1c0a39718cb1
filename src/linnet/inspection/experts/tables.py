"""The usage of experts as rows of text."""

from linnet.inspection.experts.measure import ExpertUsage
from linnet.inspection.tables import number
from linnet.present.table import Table


def experts_tables(found: ExpertUsage) -> list[Table]:
    """A row for each layer."""
    rows = [
        (
            f"layer {layer.layer}",
            str(len(layer.shares)),
            number(layer.effective, digits=3),
            *(number(load, digits=3) for load in (max(layer.loads), min(layer.loads))),
            str(layer.never),
        )
        for layer in found.layers
    ]
    columns = ("", "experts", "effective", "largest load", "least load", "never used")
    meaning = (
        f"Over {found.windows} windows of {found.tokens:,} tokens. Effective: so many experts, used alike, would be as"
        " spread (exp of the entropy). Load: how often an expert is used, over what it would be if all were used alike."
    )
    return [Table("LayerExpertUsage of experts", columns, rows, meaning)]
