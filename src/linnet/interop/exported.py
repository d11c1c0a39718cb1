"""What an export made, whatever its form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.model.decoder import Decoder


@dataclass(frozen=True)
class ExportResult:
    """What was written to `path`.

    weights_bytes: of the file, or files, that hold the weights. figures: what was measured, by name, for a record;
    said: the same in words.
    """

    path: Path
    name: str
    parameters: int
    weights_bytes: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, decoder: Decoder, *weights: Path, **measured: Any) -> "ExportResult":
        """Of a decoder whose weights lie in these files."""
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        return cls(path, decoder.spec.name, parameters, sum(file.stat().st_size for file in weights), **measured)
