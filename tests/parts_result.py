"""A `Result` that tests put together from its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from linnet.present.result import Part, Picture, Result


@dataclass(frozen=True)
class PartsResult(Result):
    heading: str
    about: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    pictures: Sequence[Picture] = ()
    ending: str = ""

    def title(self) -> str:
        return self.heading

    def to_dict(self) -> dict[str, str]:
        return {}

    def facts(self) -> Mapping[str, str]:
        return self.about

    def tables(self) -> Sequence[Part]:
        return self.parts

    def plots(self) -> Sequence[Picture]:
        return self.pictures

    def conclusion(self) -> str:
        return self.ending
