"""Generating 100 tokens with a state, compared with recomputing the sequence for each: PLDR and TED of about 110 M.

Greedy, batch 1, from 12 tokens, float32. Recomputing means what a model without a state does: the whole sequence
through the whole model, PLDR's deep net behind the operator included. `python benchmarks/decode_state.py`
"""

import torch

from harness import contest, gate, report, threads_from_command_line
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState

PROMPT, TOKENS = 12, 100


def ted_110m() -> ModelSpec:
    """TED in the shape of `llama-110m`."""
    llama = ModelSpec.load("llama-110m")
    block = llama.blocks[0].model_dump() | {"mixer": {"kind": "ted"}}
    return llama.replace(name="ted-110m", blocks=[block])


def frozen(decoder: Decoder, prompt: torch.Tensor) -> DecoderState:
    """An empty state that keeps the calibration on the prompt (PLDR's operator)."""
    state = decoder.initial_state(1, PROMPT + TOKENS)
    decoder.hidden(prompt, state)
    return state.forget()


@torch.inference_mode()
def recomputed(decoder: Decoder, prompt: torch.Tensor, start: DecoderState | None) -> list[int]:
    """Every token from a pass over the whole sequence, from the frozen state `start` or without any state."""
    tokens = prompt
    for _ in range(TOKENS):
        hidden = decoder.hidden(tokens, start.fork() if start else None)[:, -1:]
        tokens = torch.cat([tokens, decoder.logits(hidden)[:, 0].argmax(-1, keepdim=True)], dim=1)
    out: list[int] = tokens[0, PROMPT:].tolist()
    return out


def main() -> None:
    """Check, then time, for both."""
    runs = threads_from_command_line(__doc__)
    results = {}
    for spec in (ModelSpec.load("pldr-v51-110m-1"), ted_110m()):
        torch.manual_seed(0)
        decoder = Decoder(spec).eval()
        prompt = torch.randint(spec.vocab_size, (1, PROMPT))

        def with_state(decoder: Decoder = decoder, prompt: torch.Tensor = prompt) -> list[int | None]:
            return [step[0] for step in decode(decoder, prompt.tolist(), TOKENS, Sampling(temperature=0.0))]

        with torch.inference_mode():
            expected = recomputed(decoder, prompt, frozen(decoder, prompt))
        same = sum(a == b for a, b in zip(with_state(), expected, strict=True))
        gate(spec.name, same == TOKENS, f"{same} of {TOKENS} tokens are those of recomputing, operator frozen")
        result = contest(with_state, lambda d=decoder, p=prompt: recomputed(d, p, None), runs)
        results[spec.name] = result.summary()
    report("decode_state", {"shape": f"{TOKENS} tokens from {PROMPT}, batch 1, float32", **results})


if __name__ == "__main__":
    main()
