"""The interface of inspections (`linnet inspect NAME`) that a kind of layer defines.

Inspections are found through the registry (`registry.inspections`), which imports them only when it is called. The
package `inspection` implements the model that an inspection reads, the command line its options.

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
    """A model that reads text, with its data if there are any."""

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
        """The number of tokens of a window."""

    @property
    def positions(self) -> str:
        """The positions of the embedding: `none`, `learned` or `sinusoidal`."""

    def check_positions(self, tokens: int, field: str) -> None:
        """`UserError`, naming the field, if the model's learned positions end before this many tokens."""

    def prompt_tokens(self, prompt: str) -> list[int]:
        """The end token, which starts a document, and the tokens of the prompt."""

    def auxiliary_outputs(self, tokens_BT: Tensor) -> Outputs:
        """The auxiliary outputs of each layer in one pass without a state."""

    def mixer_inputs(self, tokens_BT: Tensor) -> list[Tensor]:
        """The input of each layer's mixer in one pass without a state, `[B, T, D]`."""

    def first_mixer_inputs(self, tokens_V: Tensor) -> Tensor:
        """The input of the first layer's mixer for vocabulary entries, each as a separate token, `[1, V, D]`."""

    def losses(self, tokens_BT: Tensor) -> Tensor:
        """The loss of each token but the first in nats, in one pass without a state, `[B, T - 1]`."""

    def continue_prompt(
        self, prompt: str, max_tokens: int, kv_cache: bool, cache_policy: CachePolicy
    ) -> Iterator[tuple[int | None, Outputs]]:
        """The most likely tokens one by one (None at the end of the text), each with the outputs of its step."""

    def windows(self, count: int) -> Tensor:
        """Up to `count` windows at even distances in the data, `[N, context_length]`."""

    def documents(self, count: int, tokens: int, seed: int) -> Tensor:
        """The first tokens of up to `count` random documents of the data, `[N, tokens]`."""


class InspectionTarget(Protocol):
    """The object of an inspection: a model folder, or a file that the inspection can read.

    source: its path as the user wrote it. data: the data folder, or None; split: `train` or `validation`.
    """

    @property
    def source(self) -> str: ...
    @property
    def data(self) -> str | None: ...
    @property
    def split(self) -> str: ...
    def model(self) -> InspectedModel:
        """Load the model; `UserError` if it does not read text or does not fit the data."""


@dataclass(frozen=True)
class Inspection:
    """One inspection: `linnet inspect NAME`.

    help: the text of `--help`. options: a spec with a field for each option. run: from the target and the options to
    the result. data: whether it needs a data folder. source: the name of the argument in the help. applies: whether the
    inspection is possible for a model.
    """

    name: str
    help: str
    options: type[Spec]
    run: Callable[[InspectionTarget, Any], Result]
    data: Literal["none", "optional", "required"] = "none"
    source: str = "MODEL"
    applies: Callable[[InspectedModel], bool] = lambda model: True
