"""What a kind of layer brings to `linnet inspect`: its own inspections of a model that has such layers.

An inspection is found through the registry (`registry.inspections`), which imports it only when it is asked for. The
package `inspection` makes the model that an inspection sees, the command line its options.

Shapes: `B` batch, `T` tokens, `N` windows or documents, `V` vocabulary entries, `D` width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from linnet.core.spec import Spec
from linnet.layers.cache_policy import CachePolicy
from linnet.layers.contract import Mixer
from linnet.present.result import Result

Outputs = list[dict[str, Tensor]]
"""The auxiliary outputs of each layer, in the order in which a token passes them."""


class Vocabulary(Protocol):
    """The tokenizer of a model."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_id(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def describe_token(self, token: int) -> str: ...


class InspectedModel(Protocol):
    """A model that reads text, and its data if there are any."""

    @property
    def mixers(self) -> Sequence[Mixer]:
        """The mixer of each layer."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kind of mixer of each layer."""

    @property
    def tokenizer(self) -> Vocabulary: ...

    @property
    def context_length(self) -> int:
        """Tokens of a window."""

    @property
    def positions(self) -> str:
        """What the embedding adds for a position: `none`, `learned` or `sinusoidal`."""

    def check_positions(self, tokens: int, field: str) -> None:
        """`UserError` about a field if the model's learned positions end before so many tokens."""

    def prompt_tokens(self, prompt: str) -> list[int]:
        """The end token, which begins a document, then the tokens of the prompt."""

    def auxiliary_outputs(self, tokens_BT: Tensor) -> Outputs:
        """What each layer adds to the auxiliary outputs of one pass without a state."""

    def mixer_inputs(self, tokens_BT: Tensor) -> list[Tensor]:
        """What the mixer of each layer reads in one pass without a state, `[B, T, D]`."""

    def first_mixer_inputs(self, tokens_V: Tensor) -> Tensor:
        """What the mixer of the lowest layer reads of vocabulary entries, each as a token of its own, `[1, V, D]`."""

    def losses(self, tokens_BT: Tensor) -> Tensor:
        """Nats of each token but the first, given those before it, in one pass without a state, `[B, T - 1]`."""

    def continue_prompt(
        self, prompt: str, max_tokens: int, kv_cache: bool, cache_policy: CachePolicy
    ) -> Iterator[tuple[int | None, Outputs]]:
        """The likeliest tokens one by one (None at the end of the text), each with the outputs of its step."""

    def windows(self, count: int) -> Tensor:
        """Up to `count` windows of the data, spread evenly, `[N, context_length]`."""

    def documents(self, count: int, tokens: int, seed: int) -> Tensor:
        """The first tokens of up to `count` documents of the data, drawn at random, `[N, tokens]`."""


class InspectionTarget(Protocol):
    """What a user inspects: a model folder, or a file that an inspection can read.

    source: as the user wrote it. data, split: the data folder, and its side; None without one.
    """

    @property
    def source(self) -> str: ...
    @property
    def data(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    def model(self) -> InspectedModel:
        """Load the model; `UserError` for one that does not read text, or does not fit the data."""


@dataclass(frozen=True)
class Inspection:
    """One inspection: `linnet inspect NAME`.

    help: the text of `--help`. options: what it asks beside the model, a field an option. run: from the target and the
    options to the result. data: whether it needs a data folder. source: how the help calls what it inspects. applies:
    whether a model has what it inspects.
    """

    name: str
    help: str
    options: type[Spec]
    run: Callable[[InspectionTarget, Any], Result]
    data: Literal["none", "optional", "required"] = "none"
    source: str = "MODEL"
    applies: Callable[[InspectedModel], bool] = lambda model: True
