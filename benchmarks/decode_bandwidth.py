"""Decoding at batch 1, which reading the weights limits: `pldr-v51-110m-1` in every precision.

100 passes over one token each, after a prompt of 12, KV- and G-cache on, against as many plain reads of a buffer of as
many bytes as a pass reads of weights; then each precision against float32. `python benchmarks/decode_bandwidth.py`
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness import contest, elapsed_s, gate, report, threads_from_command_line
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.inference.weights import convert_weights
from linnet.layers.mixers.plga import PlgaState
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear, QuantizedEmbedding

PROMPT, TOKENS = 12, 100
ERRORS = {"float32": 0.0, "bfloat16": 0.05, "int8": 0.02, "int4": 0.02}
"""Largest error of the logits of a pass, relative to float32 with the same matrices (ratio of norms)."""


def matrices(decoder: Decoder) -> dict[str, Linear | PackedLinear]:
    """The linear maps that a pass over one token computes: all except those of the net behind the operator."""
    named = decoder.named_modules(remove_duplicate=False)
    left_out = (".operator.", "embedding.tokens.")
    maps = {name: m for name, m in named if isinstance(m, Linear | PackedLinear)}
    return {name: m for name, m in maps.items() if not any(part in name for part in left_out)}


def bytes_read(decoder: Decoder) -> int:
    """Weights that a pass over one token reads."""
    return sum(m.nbytes if isinstance(m, PackedLinear) else m.weight.nbytes for m in matrices(decoder).values())


def after_prompt(decoder: Decoder, prompt_1T: Tensor) -> tuple[DecoderState, int]:
    """The state that all precisions continue, and the next token.

    The identity stands in the operators' place: untrained ones have entries of thousands, which multiply rounding until
    nothing can be compared. They take the same time.
    """
    state = decoder.initial_state(1, PROMPT + 1 + TOKENS)
    decoder.hidden(prompt_1T[:, :1], state)
    for layer in state.layers:
        assert isinstance(layer, PlgaState) and layer.operator is not None
        layer.operator.copy_(torch.eye(layer.operator.shape[-1]))
    hidden_1TD = decoder.hidden(prompt_1T[:, 1:], state)
    return state, int(decoder.logits(hidden_1TD[:, -1]).argmax())


def in_precision(state: DecoderState, decoder: Decoder) -> DecoderState:
    """A copy of the state for a decoder of another precision."""
    tensors = state.fork().tensors()
    return state.with_tensors(
        {name: t.to(decoder.dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    )


def decoding(decoder: Decoder, state: DecoderState, first: int) -> Callable[[], list[int | None]]:
    """`TOKENS` greedy tokens, each from a pass over the one before; `first` is the first input."""

    def run() -> list[int | None]:
        steps = decode(decoder, [[first]], TOKENS, Sampling(temperature=0.0), state=in_precision(state, decoder))
        return [step[0] for step in steps]

    return run


def reading(count: int) -> tuple[str, Callable[[], object]]:
    """`TOKENS` plain reads of `count` bytes in the fastest way on this machine, and the name of that way."""
    buffer = torch.ones(count // 4)
    rows, vector = buffer[: count // 4096 * 1024].view(-1, 1024), torch.ones(1024)
    ways: dict[str, Callable[[], object]] = {
        "torch.sum": buffer.sum,
        "torch.amax": buffer.amax,
        "a matrix of 1024 columns times a vector": lambda: torch.mv(rows, vector),
    }
    name = min(ways, key=lambda way: min(elapsed_s(ways[way]) for _ in range(5)))
    return name, lambda: [ways[name]() for _ in range(TOKENS)]


def with_matrices_of(decoder: Decoder, other: Decoder) -> Decoder:
    """A float32 copy of `decoder` with the dequantized matrices and the table of `other`."""
    slow = copy.deepcopy(decoder)
    if isinstance(other.embedding.tokens, QuantizedEmbedding):
        slow.embedding.tokens.weight.data = other.embedding.tokens.weight
    for name, matrix in matrices(other).items():
        slow.get_parameter(f"{name}.weight").data = matrix.weight.float()
    return slow


def check(name: str, decoder: Decoder, float32: Decoder, state: DecoderState, first: int) -> None:
    """The gate: one pass gives the logits of float32 arithmetic with the same matrices."""
    token = torch.tensor([[first]])
    expected = with_matrices_of(float32, decoder)(token, state.fork())
    error = (decoder(token, in_precision(state, decoder)).float() - expected).norm() / expected.norm()
    gate(name, error.item() <= ERRORS[name], f"logits off by {error.item():.1e} of their size")


def measure(decoder: Decoder, ours: Callable[[], object], runs: int) -> dict[str, Any]:
    """Milliseconds and bytes of a token, and the share of a plain read."""
    count = bytes_read(decoder)
    way, read = reading(count)
    result = contest(ours, read, runs).summary()
    ms = {who: result[f"{who}_median_s"] / TOKENS * 1e3 for who in ("ours", "other")}
    return {
        "weight_bytes_per_token": count,
        "ms_per_token": round(ms["ours"], 2),
        "gb_per_s": round(count / ms["ours"] / 1e6, 1),
        "plain_read_gb_per_s": round(count / ms["other"] / 1e6, 1),
        "plain_read_by": way,
        "share_of_plain_read": result["times_as_fast"],
        "lowest": result["lowest"],
        "highest": result["highest"],
    }


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    torch.manual_seed(0)
    spec = ModelSpec.load("pldr-v51-110m-1")
    float32 = Decoder(spec).eval().requires_grad_(False)
    prompt_1T = torch.randint(spec.vocab_size, (1, PROMPT))
    state, first = after_prompt(float32, prompt_1T)
    results: dict[str, Any] = {}
    timed = decoding(float32, state, first)
    for name in ERRORS:
        decoder = copy.deepcopy(float32)
        convert_weights(decoder, name)
        check(name, decoder, float32, state, first)
        ours = decoding(decoder, state, first)
        same = sum(a == b for a, b in zip(ours(), timed(), strict=True))
        results[name] = {**measure(decoder, ours, runs), "tokens_as_float32": f"{same} of {TOKENS}"}
        if name != "float32":
            results[name]["times_as_fast_as_float32"] = contest(ours, timed, runs).summary()["times_as_fast"]
    shape = f"{spec.name}, {TOKENS} tokens one by one after {PROMPT}, batch 1, KV- and G-cache on"
    report("decode_bandwidth", {"shape": shape, **results})


if __name__ == "__main__":
    main()
