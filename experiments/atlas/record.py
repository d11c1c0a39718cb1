"""The record of the atlas: what earlier calls found, on whatever machine, is neither trained nor lost again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """The content of `experiments/atlas.json`, or of none yet; asked by the mixer's name and the text's key."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> "Record":
        """What the file holds; nothing where there is none."""
        return cls(json.loads(file.read_text()) if file.is_file() else {"mixers": []})

    @property
    def mixers(self) -> dict[str, Mapping[str, Any]]:
        """What is known of each."""
        return {mixer["name"]: mixer for mixer in self.content["mixers"]}

    def seeds(self, name: str, text: str) -> list[float]:
        """Bits per byte of each seed at equal tokens."""
        return list(self._bits(name, text).get("equal_tokens", []))

    def timed(self, name: str, text: str) -> float | None:
        """Bits per byte in attention's time."""
        bits: float | None = self._bits(name, text).get("equal_time")
        return bits

    def names(self, name: str) -> Mapping[str, int] | None:
        """How often names are kept."""
        found: Mapping[str, int] | None = self.mixers.get(name, {}).get("names")
        return found

    def _bits(self, name: str, text: str) -> Mapping[str, Any]:
        bits: Mapping[str, Any] = self.mixers.get(name, {}).get("bits_per_byte", {}).get(text, {})
        return bits
