"""The options that say how TED layers keep the past: `--context`, and what a policy evicts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.inference.cache_policy import CachePolicies
    from linnet.model.decoder import Decoder
    from linnet.ops.decay.eviction import EvictionPolicy


def _of_a_policy(name: str, metavar: str, said: str, default: str) -> Any:
    return typer.Option(name, metavar=metavar, help=f"Policy: {said}", show_default=default)


Kind = Annotated[
    Literal["full", "policy", "bank"] | None,
    typer.Option(
        "--context",
        help="What TED layers keep of the text: all of it, what an eviction policy leaves, or a bank of sums whose "
        "size never changes.",
        show_default="full",
    ),
]
EACH = "One number, or one for each TED layer"
TopK = Annotated[
    str | None,
    _of_a_policy("--context-top-k", "K", f"only the K most relevant tokens stay; 0 for all. {EACH}: 8,8,16.", "0"),
]
Threshold = Annotated[
    str | None,
    _of_a_policy("--context-threshold", "X", f"tokens below this relevance go; negative for none. {EACH}.", "1e-8"),
]
MinTokens = Annotated[
    str | None,
    _of_a_policy("--context-min-tokens", "N", f"the N most relevant tokens stay in any case. {EACH}.", "1"),
]
Show = Annotated[
    bool,
    typer.Option(
        "--show-context", help="Show what each TED layer holds: live on a terminal, and once more at the end."
    ),
]

OF_A_POLICY: dict[str, tuple[str, type[int] | type[float]]] = {
    "--context-top-k": ("top_k", int),
    "--context-threshold": ("threshold", float),
    "--context-min-tokens": ("min_tokens_to_keep", int),
}
"""Which field of `EvictionPolicy` an option sets, and the kind of number."""


@dataclass(frozen=True)
class ContextOptions:
    """The options as they were typed; None where one was not. `UserError` for options that contradict."""

    kind: Literal["full", "policy", "bank"] | None = None
    top_k: str | None = None
    threshold: str | None = None
    min_tokens: str | None = None
    show: bool = False

    def __post_init__(self) -> None:
        if self.kind in ("full", "bank") and self._of_a_policy():
            raise UserError(f"{self.typed}: with {self.kind} nothing is evicted; expected --context policy")

    def _of_a_policy(self) -> dict[str, str]:
        texts = zip(OF_A_POLICY, (self.top_k, self.threshold, self.min_tokens), strict=True)
        return {option: text for option, text in texts if text is not None}

    @property
    def typed(self) -> str:
        """The options that do not just ask for the default, as they were typed."""
        kind = {} if self.kind is None else {"--context": self.kind}
        choices = [f"{option} {text}" for option, text in (kind | self._of_a_policy()).items()]
        choices = [] if choices == ["--context full"] else choices
        return " ".join([*choices, "--show-context"] if self.show else choices)

    def check_kept(self, kv_cache: bool) -> None:
        """`UserError` where nothing is kept of the text, so that there is no context to choose or to show."""
        if self.typed and not kv_cache:
            raise UserError(f"--no-kv-cache: nothing is kept of the text; expected no {self.typed}")

    def contexts(self, decoder: "Decoder") -> "CachePolicies":
        """What they mean for this model; `UserError` where they do not fit it, or for a value that cannot be."""
        from linnet.inference.cache_policy import chooses
        from linnet.layers.cache_policy import FULL, BankCache

        are_ted = [chooses(mixer) for mixer in decoder.mixers]
        if self.typed and not any(are_ted):
            raise UserError(f"{self.typed}: the model has no ted layer; leave it out")
        if self.kind != "policy" and not self._of_a_policy():
            return BankCache() if self.kind == "bank" else FULL
        policies = iter(self._policies(sum(are_ted)))
        return [next(policies) if is_ted else FULL for is_ted in are_ted]

    def _policies(self, layers: int) -> list["EvictionPolicy"]:
        """One for each TED layer."""
        from linnet.ops.decay.eviction import EvictionPolicy

        columns: dict[str, list[Any]] = {}
        for option, text in self._of_a_policy().items():
            field, number = OF_A_POLICY[option]
            columns[field] = _numbers(option, text, number, layers)
        try:
            return [EvictionPolicy(**{field: column[i] for field, column in columns.items()}) for i in range(layers)]
        except ValueError as error:
            raise UserError(f"{self.typed}: {error}") from None


def _numbers(option: str, text: str, number: type[int] | type[float], layers: int) -> list[Any]:
    """One for each TED layer; `UserError` where it is not a number or there are too many or too few."""
    kind = "whole number" if number is int else "number"
    accepted = f"expected a {kind}, or {layers}, one for each ted layer, with commas between them"
    try:
        numbers = [number(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option}: {text}: {accepted}") from None
    if len(numbers) not in (1, layers):
        raise UserError(f"{option}: {text}: {len(numbers)} numbers; {accepted}")
    return numbers * (layers // len(numbers))
