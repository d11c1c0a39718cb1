"""Options that mean the same in several verbs."""

from typing import Annotated, Literal

import typer

ContextLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens that are read at once; the model's if not given.", show_default=False)
]
OperatorSource = Annotated[
    Literal["train", "empty"],
    typer.Option(
        help="The text that freezes the operator of a model that is not causal by itself: the start of the training "
        "split, or the empty prompt."
    ),
]
Weights = Annotated[
    Literal["float32", "bfloat16", "int8"] | None,
    typer.Option(help="Precision of the weights; as stored if not given.", show_default=False),
]
