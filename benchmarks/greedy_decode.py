"""Greedy decoding of 100 tokens from 12 at batch 1, compared with Transformers' `generate`: `llama-110m`, float32.

`python benchmarks/greedy_decode.py`
"""

import torch
from transformers import LlamaForCausalLM

from harness import contest, gate, report, threads_from_command_line
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from llamas import NO_END, transformers_llama, with_weights_of

PROMPT, TOKENS = 12, 100


def models() -> tuple[Decoder, LlamaForCausalLM]:
    """The preset and Transformers' model of the same shape, with the same weights."""
    torch.manual_seed(0)
    spec = ModelSpec.load("llama-110m")
    theirs = transformers_llama(spec, **NO_END).eval()
    return with_weights_of(theirs, spec).eval(), theirs


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    ours, theirs = models()
    prompt = torch.randint(ours.spec.vocab_size, (1, PROMPT))

    def our_tokens() -> list[int | None]:
        steps = decode(ours, prompt.tolist(), TOKENS, Sampling(temperature=0.0))
        return [step[0] for step in steps]

    @torch.inference_mode()
    def their_tokens() -> list[int]:
        out = theirs.generate(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        tokens: list[int] = out[0, PROMPT:].tolist()
        return tokens

    mine, other = our_tokens(), their_tokens()
    same = sum(a == b for a, b in zip(mine, other, strict=True))
    gate("tokens", same == TOKENS, f"{same} of {TOKENS} tokens are the same")
    result = contest(our_tokens, their_tokens, runs)
    shape = f"llama-110m, {TOKENS} tokens from {PROMPT}, batch 1, float32"
    report("greedy_decode", {"shape": shape, "against": "transformers generate (KV-cache)", **result.summary()})


if __name__ == "__main__":
    main()
