"""How far the text at hand goes: epochs, and what text is worth that a model has seen before."""

import math
from dataclasses import dataclass
from pathlib import Path

from linnet.data.token_data import read_manifest

MOST_EPOCHS = 4
"""Up to which repeated text is nearly as good as new: Muennighoff et al. 2023, arXiv 2305.16264, section 6."""

REPETITION_DECAY = 15.387756
"""`R*_D` of the same paper, appendix A: repetitions after which another is worth 1 / e of new text."""

WARNING_SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264"


@dataclass(frozen=True)
class DataAtHand:
    """The training split of a data folder, and its tokenizer's vocabulary."""

    folder: Path
    tokens: int
    bytes_per_token: float
    vocab_size: int

    def epochs(self, tokens: float) -> float:
        """How often training on so many tokens sees the text."""
        return tokens / self.tokens

    def worth(self, tokens: float) -> float:
        """As many new tokens would teach the same: `U + U R* (1 - exp(-R / R*))`, R repetitions (equation 5)."""
        repetitions = self.epochs(tokens) - 1
        if repetitions <= 0:
            return tokens
        return self.tokens * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def read_data_at_hand(folder: Path) -> DataAtHand:
    """From the manifest of a data folder; `UserError` where it is none."""
    manifest = read_manifest(folder)
    split = manifest.splits["train"]
    return DataAtHand(folder, split.tokens, split.bytes / split.tokens, manifest.tokenizer.vocab_size)
