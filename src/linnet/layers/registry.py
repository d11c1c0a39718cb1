"""Every mixer that a model can be made of. To add one: import its spec and add one line."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.plga.module import PlgaSpec
from linnet.layers.mixers.ted.module import TedSpec

MIXERS: dict[str, type[MixerSpec]] = {
    "attention": AttentionSpec,
    "plga": PlgaSpec,
    "ted": TedSpec,
}

if TYPE_CHECKING:
    AnyMixer = MixerSpec
else:
    AnyMixer = Annotated[Union[tuple(MIXERS.values())], Field(discriminator="kind")]  # noqa: UP007
