"""A training step of our attention decoder against Transformers' `LlamaForCausalLM`: same shape, same weights.

10 M parameters, 4 x 512 tokens, the same AdamW, in float32 and in bfloat16 (`torch.autocast`).
`python benchmarks/training_step.py`
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from harness import contest, gate, report, threads_from_command_line
from linnet.core.system import keep_freed_memory
from linnet.interop.tensor_names import LLAMA
from linnet.model.decoder import Decoder
from llamas import llama_spec, transformers_llama, with_weights_of

LAYERS, HEADS, WIDTH, HIDDEN, VOCABULARY = 8, 4, 256, 688, 8192
BATCH, TOKENS = 4, 512


def models() -> tuple[Decoder, LlamaForCausalLM]:
    """Ours and theirs with the same weights."""
    torch.manual_seed(0)
    spec = llama_spec(VOCABULARY, WIDTH, LAYERS, {"kind": "attention", "heads": HEADS}, HIDDEN, TOKENS)
    theirs = transformers_llama(spec)
    return with_weights_of(theirs, spec), theirs


Loss = Callable[[], Tensor]


def losses(ours: Decoder, theirs: LlamaForCausalLM, dtype: torch.dtype) -> tuple[Loss, Loss]:
    """The mean loss of the two on the same tokens, with products in `dtype`."""
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()

    def our_loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return ours.token_loss(ours.hidden(inputs), targets).nats / targets.numel()

    def their_loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss: Tensor = theirs(input_ids=inputs, labels=inputs, shift_labels=targets, use_cache=False).loss
        return loss

    return our_loss, their_loss


def check(ours: Decoder, theirs: LlamaForCausalLM, our_loss: Loss, their_loss: Loss, tolerance: float) -> None:
    """Both compute the same, to a `tolerance`."""
    (mine := our_loss()).backward()
    (other := their_loss()).backward()
    expected = LLAMA.from_published({name: p.grad for name, p in theirs.named_parameters()}, ours.spec)
    worst = max(
        (p.grad - expected[name]).abs().max() / expected[name].abs().max() for name, p in ours.named_parameters()
    )
    gate("loss", abs(mine.item() - other.item()) < tolerance, f"{mine.item():.6f} and {other.item():.6f} nats")
    gate("gradients", worst.item() < 10 * tolerance, f"largest difference {worst.item():.1e} of the largest gradient")


def step(model: torch.nn.Module, loss: Loss) -> Callable[[], None]:
    """A training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__, runs=9)
    keep_freed_memory()  # as `linnet train` does
    found: dict[str, Any] = {}
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        ours, theirs = models()
        pair = losses(ours, theirs, dtype)
        check(ours, theirs, *pair, tolerance)
        timed = contest(step(ours, pair[0]), step(theirs, pair[1]), runs, warm_up=2)
        found[str(dtype).removeprefix("torch.")] = timed.summary()
    shape = f"{sum(p.numel() for p in ours.parameters()):,} parameters, {BATCH} x {TOKENS} tokens"
    report("training_step", {"shape": shape, "against": "transformers LlamaForCausalLM (sdpa)", **found})


if __name__ == "__main__":
    main()
