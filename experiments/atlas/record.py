"""The records of the atlas: what earlier calls found, on whatever machine, with what it was made of and where.

Each figure has `made`: hashes of its description (`provenance`) and the number of its origin, which stands once for
all of its figures: commit, day, machine. A record is written after each training, whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provenance import Made, here

from linnet.core.files import read_json, write_json

Figure = dict[str, Any]


@dataclass
class Record:
    """The content of a file, or of none yet. origin: this machine and commit, as `here` tells them."""

    file: Path
    content: dict[str, Any]
    origin: Mapping[str, Any] = field(default_factory=here)

    @classmethod
    def read(cls, file: Path) -> "Record":
        """What the file holds; nothing where there is none. `UserError` where it is no JSON."""
        return cls(file, read_json(file) if file.is_file() else {"origins": {}})

    def write(self) -> None:
        """Keep it."""
        write_json(self.file, self.content)

    def made(self, of: Made, origin: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What is kept with a figure that was made at `origin`; None: here and now."""
        return {**of, "origin": self._number(self.origin if origin is None else origin)}

    def _number(self, wanted: Mapping[str, Any]) -> str:
        """Of an origin: that of an equal one that is known, else a new one."""
        known: dict[str, Any] = self.content.setdefault("origins", {})
        for number, origin in known.items():
            if origin == wanted:
                return number
        number = str(1 + max(map(int, known), default=0))
        known[number] = dict(wanted)
        return number


class AtlasRecord(Record):
    """`experiments/atlas.json`, asked by the mixer's name and the text's key."""

    def mixer(self, name: str) -> Figure:
        """All that is known of one; it is there from now on."""
        mixers: list[Figure] = self.content.setdefault("mixers", [])
        for mixer in mixers:
            if mixer["name"] == name:
                return mixer
        mixers.append({"name": name, "bits_per_byte": {}})
        return mixers[-1]

    def seeds(self, name: str, text: str) -> list[Figure]:
        """At equal tokens, a figure for each seed."""
        return list(self._of_text(name, text)["equal_tokens"])

    def seed(self, name: str, text: str, seed: int) -> Figure | None:
        """The one of that seed."""
        return next((figure for figure in self.seeds(name, text) if figure["seed"] == seed), None)

    def timed(self, name: str, text: str) -> Figure | None:
        """In attention's time; attention's own is that of its first seed."""
        if name == "attention":
            return next(iter(self.seeds(name, text)), None)
        found: Figure | None = self._of_text(name, text)["equal_time"]
        return found

    def keep_seed(self, name: str, text: str, figure: Figure) -> None:
        """In the place of the one of the same seed."""
        others = [other for other in self.seeds(name, text) if other["seed"] != figure["seed"]]
        self._of_text(name, text)["equal_tokens"] = sorted([*others, figure], key=lambda one: int(one["seed"]))

    def keep_timed(self, name: str, text: str, figure: Figure) -> None:
        """In the place of the one that is there."""
        self._of_text(name, text)["equal_time"] = figure

    def _of_text(self, name: str, text: str) -> Figure:
        found: Figure = self.mixer(name)["bits_per_byte"].setdefault(text, {"equal_tokens": [], "equal_time": None})
        return found


class AbilityRecord(Record):
    """`experiments/atlas-abilities.json`, asked by task, mixer and seed."""

    def mixer(self, task: str, name: str) -> Figure:
        """All that is known of one; it is there from now on."""
        mixers: list[Figure] = self.content.setdefault("tasks", {}).setdefault(task, {}).setdefault("mixers", [])
        for mixer in mixers:
            if mixer["name"] == name:
                return mixer
        mixers.append({"name": name, "seeds": []})
        return mixers[-1]

    def seed(self, task: str, name: str, seed: int) -> Figure | None:
        """The figures of that seed."""
        return next((figure for figure in self.mixer(task, name)["seeds"] if figure["seed"] == seed), None)

    def keep_seed(self, task: str, name: str, figure: Figure, of_mixer: Figure) -> None:
        """In the place of that seed's. of_mixer: what all seeds share."""
        mixer = self.mixer(task, name)
        others = [other for other in mixer["seeds"] if other["seed"] != figure["seed"]]
        seeds = sorted([*others, figure], key=lambda one: int(one["seed"]))
        mixer.update({"seeds": seeds, **of_mixer})
