"""Every mixer and feed-forward that a model can be made of: whatever stands in the two packages is found.

A kind is a description (`MixerSpec`, `FeedForwardSpec`) with a field `kind` that is one word, in a module, or a
package, of `layers.mixers` or `layers.feed_forwards`.
"""

import importlib.util
import inspect
import math
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar, Union, get_args

from pydantic import Field

from linnet.layers import feed_forwards, mixers
from linnet.layers.cache_policy import CachePolicy, FullCache, RecalibratingCache, parse_cache_policy
from linnet.layers.contract import FeedForwardSpec, MixerSpec, Place, SublayerSpec
from linnet.layers.inspection import Inspection

AnySpec = TypeVar("AnySpec", bound=SublayerSpec)


def _found(package: ModuleType, base: type[AnySpec]) -> dict[str, type[AnySpec]]:
    """The descriptions in the modules of a package, by kind, in the order of the alphabet."""
    kinds: dict[str, type[AnySpec]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for spec in vars(importlib.import_module(module.name)).values():
            own = isinstance(spec, type) and issubclass(spec, base) and spec.__module__.startswith(module.name)
            if own and not inspect.isabstract(spec):
                (kind,) = get_args(spec.model_fields["kind"].annotation)
                assert kinds.setdefault(kind, spec) is spec, f"two kinds are called {kind}"
    return dict(sorted(kinds.items()))


MIXERS = _found(mixers, MixerSpec)  # type: ignore[type-abstract]
FEED_FORWARDS = _found(feed_forwards, FeedForwardSpec)  # type: ignore[type-abstract]

if TYPE_CHECKING:
    AnyMixer = MixerSpec
    AnyFeedForward = FeedForwardSpec
else:
    AnyMixer = Annotated[Union[tuple(MIXERS.values())], Field(discriminator="kind")]  # noqa: UP007
    AnyFeedForward = Annotated[Union[tuple(FEED_FORWARDS.values())], Field(discriminator="kind")]  # noqa: UP007


def _plain_mixer() -> MixerSpec:
    """The mixer with the fewest parameters of those that need no settings and take every width."""
    needs = {kind: any(field.is_required() for field in kind.model_fields.values()) for kind in MIXERS.values()}
    plain = [kind.model_validate({}) for kind, needed in needs.items() if not needed]
    place = Place(width=1, context_length=1)

    def parameters(spec: MixerSpec) -> float:
        try:
            spec.check(1)
        except ValueError:
            return math.inf
        return spec.cost(place).parameters

    return min(plain, key=parameters)


PLAIN_MIXER: dict[str, str] = {"kind": _plain_mixer().kind}
"""The description of a mixer that stands for any, where only what is around it matters."""


def kinds_with_calibration() -> str:
    """The kinds of mixer that calibrate on a text, for messages."""
    return ", ".join(kind for kind, spec in MIXERS.items() if any(one.calibration == "text" for one in spec.examples()))


def kinds_with_prefixes() -> str:
    """The kinds of mixer that can see all of a prefix, for messages."""
    return " or ".join(name for name, kind in MIXERS.items() if any(spec.supports_prefix for spec in kind.examples()))


_KNOWN: list[type[CachePolicy]] = [FullCache, *(policy for spec in MIXERS.values() for policy in spec.cache_policies)]
CACHE_POLICIES = {policy.name: policy for policy in _KNOWN}
"""Every cache policy by its name."""


def cache_policy_of(text: str, field: str = "cache_policy") -> CachePolicy:
    """A cache policy from text; see `parse_cache_policy`."""
    return parse_cache_policy(text, CACHE_POLICIES, field)


def kinds_with_cache_policies() -> str:
    """The kinds of mixer that have a choice of how much of the past they keep, for messages."""
    return ", ".join(kind for kind, spec in MIXERS.items() if set(spec.cache_policies) - {RecalibratingCache})


def inspections() -> dict[str, Inspection]:
    """The inspections that kinds bring, by name: `INSPECTIONS` of the module `inspect` of a kind that is a package."""
    found: list[Inspection] = []
    for package in (mixers, feed_forwards):
        for kind in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if kind.ispkg and importlib.util.find_spec(f"{kind.name}.inspect") is not None:
                found += importlib.import_module(f"{kind.name}.inspect").INSPECTIONS
    return {inspection.name: inspection for inspection in found}
