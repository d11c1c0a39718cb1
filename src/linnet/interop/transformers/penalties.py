"""The penalties of linnet and of OpenAI's interface that Transformers lacks, as one of its logits processors.

Legend: `B` batch, `T` tokens of prompt and text, `V` vocabulary.
"""

import torch
from torch import Tensor
from transformers import LogitsProcessor

from linnet.core.errors import check_whole
from linnet.inference.sampling import Sampling


class GeneratedTokenPenalties(LogitsProcessor):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """Frequency and presence penalties, which count the tokens that were generated behind the prompt.

    model.generate(**batch, logits_processor=LogitsProcessorList([GeneratedTokenPenalties(prompt_tokens, 0.5)]))

    It stands between the repetition penalty and the temperature of Transformers, as in `inference.sampling`.
    """

    def __init__(self, prompt_tokens: int, frequency_penalty: float = 0.0, presence_penalty: float = 0.0) -> None:
        """prompt_tokens: the length of `input_ids` of `generate`, padding included.

        frequency_penalty: is subtracted from the logit of a token for each time that it was generated;
        presence_penalty: once if it was. `UserError` for numbers that `Sampling` does not accept.
        """
        check_whole("prompt_tokens", prompt_tokens, accepted="the length of input_ids")
        Sampling(frequency_penalty=frequency_penalty, presence_penalty=presence_penalty)  # checks both
        self.prompt_tokens = prompt_tokens
        self.frequency_penalty, self.presence_penalty = frequency_penalty, presence_penalty

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits `[B, V]` after the penalties, from tokens `[B, T]` and logits `[B, V]`."""
        generated_BT = input_ids[:, self.prompt_tokens :]
        times_BV = torch.zeros_like(scores).scatter_add_(
            1, generated_BT, torch.ones_like(generated_BT, dtype=scores.dtype)
        )
        penalty_BV = self.frequency_penalty * times_BV + self.presence_penalty
        return torch.where(times_BV > 0, scores - penalty_BV, scores)
