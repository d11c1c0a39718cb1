"""The registry of all kinds of mixers and feed-forwards, found in their two packages.

A kind is a spec (a subclass of `MixerSpec` or `FeedForwardSpec`) whose field `kind` has one literal value, in a module
or a package of `layers.mixers` or `layers.feed_forwards`.
"""

import importlib.util
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar, Union, get_args

from pydantic import Field

from linnet.core.errors import UserError
from linnet.layers import feed_forwards, mixers
from linnet.layers.cache_policy import CachePolicy, FullCache, RecalibratingCache
from linnet.layers.contract import FeedForwardSpec, MixerSpec, Place, SublayerSpec
from linnet.layers.inspection import Inspection

AnySpec = TypeVar("AnySpec", bound=SublayerSpec)


def _specs_in(package: ModuleType, base: type[AnySpec]) -> dict[str, type[AnySpec]]:
    """The specs in the modules of a package, by kind, in alphabetical order."""
    kinds: dict[str, type[AnySpec]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for spec in vars(importlib.import_module(module.name)).values():
            own = isinstance(spec, type) and issubclass(spec, base) and spec.__module__.startswith(module.name)
            if own and not inspect.isabstract(spec):
                (kind,) = get_args(spec.model_fields["kind"].annotation)
                assert kinds.setdefault(kind, spec) is spec, f"two kinds are called {kind}"
    return dict(sorted(kinds.items()))


MIXERS = _specs_in(mixers, MixerSpec)  # type: ignore[type-abstract]
FEED_FORWARDS = _specs_in(feed_forwards, FeedForwardSpec)  # type: ignore[type-abstract]

if TYPE_CHECKING:
    AnyMixer = MixerSpec
    AnyFeedForward = FeedForwardSpec
else:
    AnyMixer = Annotated[Union[tuple(MIXERS.values())], Field(discriminator="kind")]  # noqa: UP007
    AnyFeedForward = Annotated[Union[tuple(FEED_FORWARDS.values())], Field(discriminator="kind")]  # noqa: UP007


def _plain_mixer() -> MixerSpec:
    """The mixer with the fewest parameters of those that have no required fields and support every width."""
    costs: list[tuple[int, MixerSpec]] = []
    for kind in MIXERS.values():
        if any(field.is_required() for field in kind.model_fields.values()):
            continue
        spec = kind.model_validate({})
        try:
            spec.check(1)
        except ValueError:
            continue
        costs.append((spec.cost(Place(width=1, context_length=1)).parameters, spec))
    return min(costs, key=lambda pair: pair[0])[1]


PLAIN_MIXER: dict[str, str] = {"kind": _plain_mixer().kind}
"""The description of a simple mixer, for measuring the rest of a model."""


def kinds_with_calibration() -> str:
    """The kinds of mixer that calibrate on a text, for messages."""
    return ", ".join(name for name, kind in MIXERS.items() if any(s.calibration == "text" for s in kind.examples()))


def kinds_with_prefixes() -> str:
    """The kinds of mixer that can read prefixes as a whole, for messages."""
    return " or ".join(name for name, kind in MIXERS.items() if any(spec.supports_prefix for spec in kind.examples()))


def kinds_with_cache_policies() -> str:
    """The kinds of mixer with a choice of cache policies, for messages."""
    return ", ".join(kind for kind, spec in MIXERS.items() if set(spec.cache_policies) - {RecalibratingCache})


_POLICIES: list[type[CachePolicy]] = [
    FullCache,
    *(policy for spec in MIXERS.values() for policy in spec.cache_policies),
]
CACHE_POLICIES = {policy.name: policy for policy in _POLICIES}
"""Every cache policy by its name."""


def cache_policy_of(text: str, field: str = "cache_policy") -> CachePolicy:
    """A cache policy from text: `NAME`, `NAME:FIELD=NUMBER,...`, or, if the fields identify it, `FIELD=NUMBER,...`.

    `UserError` names `field`, the text and what is accepted.
    """
    name, colon, rest = text.partition(":")
    if name not in CACHE_POLICIES:
        name, rest = "", text
    elif not colon:
        return CACHE_POLICIES[name]()
    parts = rest.split(",")
    values = dict(part.split("=", 1) for part in parts if part.count("=") == 1)
    candidates = [
        policy
        for key, policy in CACHE_POLICIES.items()
        if name in ("", key) and len(values) == len(parts) and values.keys() <= policy.field_types().keys()
    ]
    if len(candidates) != 1:
        names = ", ".join(policy.name for policy in CACHE_POLICIES.values() if not policy.example)
        with_fields = [policy for policy in CACHE_POLICIES.values() if policy.example]
        forms = [f"{', '.join(policy.field_types())}, as in {policy.example}" for policy in with_fields]
        raise UserError(field=field, value=text, accepted=", or ".join([names, *forms]))
    try:
        return candidates[0].from_text(values)
    except ValueError as error:
        raise UserError(str(error), field=field, value=text) from None


def inspections() -> dict[str, Inspection]:
    """The inspections of kinds that are packages by name, from `INSPECTIONS` of their modules `inspect`."""
    by_name: dict[str, Inspection] = {}
    for package in (mixers, feed_forwards):
        for kind in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if kind.ispkg and importlib.util.find_spec(f"{kind.name}.inspect") is not None:
                own = importlib.import_module(f"{kind.name}.inspect").INSPECTIONS
                by_name |= {inspection.name: inspection for inspection in own}
    return by_name
