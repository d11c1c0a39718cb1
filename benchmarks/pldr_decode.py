"""100 greedy tokens from 12 with `pldr-v51-110m-1`, fresh weights, batch 1, float32: the caches, and other models.

`python benchmarks/pldr_decode.py`. Against both caches off, and against Transformers' Llama of the same shape and
GPT-Neo-125M, both with their KV-cache.
"""

import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, PreTrainedModel

from harness import contest, gate, report, threads_from_command_line
from linnet.inference.decode import decode
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from llamas import NO_END, transformers_llama

PROMPT, TOKENS = 12, 100


def gpt_neo() -> GPTNeoForCausalLM:
    """The shape of EleutherAI/gpt-neo-125m, fresh weights."""
    config = GPTNeoConfig(
        vocab_size=50257, max_position_embeddings=2048, hidden_size=768, num_layers=12, num_heads=12,
        attention_types=[[["global", "local"], 6]], window_size=256, **NO_END,
    )  # fmt: skip
    return GPTNeoForCausalLM(config).eval()


def main() -> None:
    """Check, then time each pair in turn."""
    runs = threads_from_command_line(__doc__)
    torch.manual_seed(0)
    spec = ModelSpec.load("pldr-v51-110m-1")
    pldr = Decoder(spec).eval()
    prompt = torch.randint(spec.vocab_size, (1, PROMPT))

    def ours(caches: Caches = Caches()) -> list[int | None]:
        return [step[0] for step in decode(pldr, prompt.tolist(), TOKENS, Sampling(temperature=0.0), caches=caches)]

    def theirs(model: PreTrainedModel) -> list[int]:
        with torch.inference_mode():
            out = model.generate(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        tokens: list[int] = out[0, PROMPT:].tolist()
        return tokens

    cached, recomputed = ours(), ours(Caches(kv=False))
    same = sum(a == b for a, b in zip(cached, recomputed, strict=True))
    gate("tokens", same == TOKENS, f"{same} of {TOKENS} are those of reading the text again with the same operator")
    others = {
        "llama of the same shape": transformers_llama(ModelSpec.load("llama-110m"), **NO_END).eval(),
        "gpt-neo-125m": gpt_neo(),
    }
    results: dict[str, object] = {"shape": f"pldr-v51-110m-1, {TOKENS} tokens from {PROMPT}, batch 1, float32"}
    results["both caches off"] = contest(ours, lambda: ours(Caches(False, False)), runs).summary()
    for name, model in others.items():
        gate(
            name,
            len(theirs(model)) == TOKENS,
            f"{TOKENS} tokens, {sum(p.numel() for p in model.parameters()):,} parameters",
        )
        results[name] = contest(ours, lambda model=model: theirs(model), runs).summary()  # type: ignore[misc]
    report("pldr_decode", results)


if __name__ == "__main__":
    main()
