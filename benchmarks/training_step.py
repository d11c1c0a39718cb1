"""A training step of our attention decoder against Transformers' `LlamaForCausalLM`: same shape, same weights.

10 M parameters, 4 x 512 tokens, float32, the same AdamW. `python benchmarks/training_step.py`
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness import contest, gate, report, threads_from_command_line
from linnet.core.allocator import keep_freed_memory
from linnet.interop.names import LLAMA, renamed
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

LAYERS, HEADS, WIDTH, HIDDEN, VOCABULARY = 8, 4, 256, 688, 8192
BATCH, TOKENS = 4, 512


def models() -> tuple[Decoder, LlamaForCausalLM]:
    """Ours and theirs with the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, rms_norm_eps=1e-6, max_position_embeddings=TOKENS, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    block = {
        "repeat": LAYERS,
        "mixer": {"kind": "attention", "heads": HEADS},
        "feed_forward": {"kind": "glu", "hidden": HIDDEN},
    }
    head = {"tied": False, "norm": {"kind": "rms", "eps": 1e-6}}
    description = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "context_length": TOKENS,
        "blocks": [block],
        "head": head,
    }
    ours = Decoder(ModelSpec.parse(description, "benchmark"))
    ours.load_state_dict(renamed(theirs.state_dict(), ours.spec, LLAMA))
    return ours, theirs


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    keep_freed_memory()  # as `linnet train` does
    ours, theirs = models()
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()

    def our_loss() -> torch.Tensor:
        return ours.token_loss(ours.hidden(inputs), targets).nats / targets.numel()

    def their_loss() -> torch.Tensor:
        loss: torch.Tensor = theirs(input_ids=inputs, labels=inputs, shift_labels=targets, use_cache=False).loss
        return loss

    (mine := our_loss()).backward()
    (other := their_loss()).backward()
    expected = renamed({name: p.grad for name, p in theirs.named_parameters()}, ours.spec, LLAMA)
    worst = max(
        (p.grad - expected[name]).abs().max() / expected[name].abs().max() for name, p in ours.named_parameters()
    )
    gate("loss", abs(mine.item() - other.item()) < 1e-4, f"{mine.item():.6f} and {other.item():.6f} nats")
    gate("gradients", worst.item() < 1e-3, f"largest difference {worst.item():.1e} of the largest gradient")

    def step(model: torch.nn.Module, loss: object) -> object:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def run() -> None:
            optimiser.zero_grad(set_to_none=True)
            loss().backward()  # type: ignore[operator]
            optimiser.step()

        return run

    result = contest(step(ours, our_loss), step(theirs, their_loss), runs, warm_up=2)  # type: ignore[arg-type]
    shape = f"{sum(p.numel() for p in ours.parameters()):,} parameters, {BATCH} x {TOKENS} tokens, float32"
    report("training_step", {"shape": shape, "against": "transformers LlamaForCausalLM (sdpa)", **result.summary()})


if __name__ == "__main__":
    main()
