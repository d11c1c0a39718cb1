"""Conversations, a small decoder in float64, and loss and gradients of a step; of two processes as JSON.

`python steps_of_rows.py`: with packed windows and with rows, for each of `WEIGHTS`.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.data.loader import Batch, Batches, document_rows
from linnet.data.packing import PackedBatches
from linnet.data.pieces import ByteCounts
from linnet.data.shards import TokenSequence
from linnet.data.target_weights import ROLE_NUMBERS, TargetWeights
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training.distributed import SINGLE_PROCESS, Processes, join_processes
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec
from linnet.training.step import Stepper

USER, ANSWER = ROLE_NUMBERS["user"], ROLE_NUMBERS["assistant"]
VOCABULARY = 23
MIXERS = {
    "attention": {"kind": "attention", "heads": 2},
    "recurrence": {"kind": "gated_delta", "heads": 2, "head_dim": 4, "eps": 1e-3},
    "convolution": {"kind": "h3", "state": 4, "shift": 3},
    "ted": {"kind": "ted", "heads": 2, "key_width": 3, "conv": 3},
    "plga": {"kind": "plga", "heads": 2, "metric_hidden": 4, "residual_units": 1},
}
WEIGHTS = {
    "tokens": None,
    "roles": TargetWeights({"assistant": 1.0, "user": 0.1}),
    "conversations": TargetWeights(per_row=True),
    "roles of conversations": TargetWeights({"assistant": 2.0, "user": 0.5}, per_row=True),
}
LENGTHS = [5, 9, 3, 12, 7, 4, 4, 11]


class Step(NamedTuple):
    """The loss that is minimized, the gradient of each parameter, summed nats, and the number of targets."""

    loss: float
    gradients: list[Tensor]
    nats: float
    tokens: int

    def summary(self) -> list[float]:
        """All of it in few numbers: of each gradient its product with a random one."""
        generator = torch.Generator().manual_seed(0)
        probes = [torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in self.gradients]
        products = [float((g * probe).sum()) for g, probe in zip(self.gradients, probes, strict=True)]
        return [self.loss, self.nats, self.tokens, *products]


def conversations(lengths: Sequence[int], seed: int = 0) -> TokenSequence:
    """Random ones with so many targets each, at least one of them in an answer."""
    random, starts = np.random.default_rng(seed), np.cumsum([0, *lengths])
    tokens, roles = random.integers(1, VOCABULARY, starts[-1] + 1), random.integers(0, 3, starts[-1] + 1)
    roles = np.array([0, USER, ANSWER])[roles]
    roles[starts[:-1] + random.integers(1, lengths)] = ANSWER  # within each, and not the beginning of the next one
    tokens[starts], roles[starts] = 0, 0
    return TokenSequence.in_memory("chat", 0, tokens, roles == ANSWER, starts=starts[:-1], roles=roles)


def decoder_of(mixer: str) -> Decoder:
    """The same one each time, in float64."""
    block = {"mixer": MIXERS[mixer], "feed_forward": {"kind": "glu", "hidden": 8}}
    plain = {"name": mixer, "vocab_size": VOCABULARY, "d_model": 8, "context_length": 64, "blocks": [block]}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "head": {"norm": {}}}, "test")).double()
    with torch.no_grad():  # a mixer that matters; powers amplify the rounding of large weights
        for parameter in decoder.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 and mixer != "plga" else 1.0)
    return decoder


def step(mixer: str, batches: Sequence[Batch], processes: Processes = SINGLE_PROCESS) -> Step:
    """What one step over these batches does: its gradients are those that its plain descent subtracts."""
    decoder, losses = decoder_of(mixer), list[float]()
    model = ParallelModel(decoder, processes=processes)
    before = [parameter.detach().clone() for parameter in decoder.parameters()]
    optimizer = torch.optim.SGD([{"params": decoder.parameters(), "scale": 1.0}], lr=1.0)
    byte_counts = ByteCounts.create([1] * VOCABULARY).to("cpu")
    take = Stepper(
        model, next_token_loss, optimizer, ClipSpec(by="none"), torch.float32, byte_counts,
        lambda loss, norm: losses.append(loss),
    )  # fmt: skip
    result = take(batches, lr=1.0)
    gradients = [old - new.detach() for old, new in zip(before, decoder.parameters(), strict=True)]
    return Step(losses[0], gradients, result.nats, result.tokens)


def definition(mixer: str, sequence: TokenSequence, weights: TargetWeights | None) -> Step:
    """The same from each conversation alone and the written definition of its weights."""
    decoder, total, weight, nats, tokens = decoder_of(mixer), torch.zeros(()).double(), 0.0, 0.0, 0
    for start, stop in zip(sequence.document_bounds[:-1].tolist(), sequence.document_bounds[1:].tolist(), strict=True):
        read = torch.from_numpy(sequence.read(start, stop - start + 1))
        logits = decoder(read[None, :-1])[0]
        own = F.cross_entropy(logits, read[1:], reduction="none")
        roles = {"assistant": 1.0} if weights is None or weights.roles is None else weights.roles
        numbers = sequence.roles.read(start + 1, stop - start).tolist()
        by_number = {ROLE_NUMBERS[role]: np.float32(value) for role, value in roles.items()}
        each = torch.tensor([float(by_number.get(number, 0.0)) for number in numbers]).double()
        if weights is not None and weights.per_row:
            each = (each / each.sum()).float().double()
        total, weight = total + each @ own, weight + float(each.sum())
        nats, tokens = nats + float(own[each > 0].sum().detach()), tokens + int((each > 0).sum())
    gradients = torch.autograd.grad(total / weight, list(decoder.parameters()), allow_unused=True)
    found = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, decoder.parameters(), strict=True)]
    return Step(float(total.detach() / weight), found, nats, tokens)


def packed_batches(sequence: TokenSequence, context: int, batch_size: int, seed: int) -> list[Batch]:
    """An epoch in packed windows, `batch_size` together; the last batch is filled with nothing."""
    packed = PackedBatches(sequence, batch_size, context, seed, document_starts=True)
    numbers = range(packed.examples_per_epoch)
    return [packed.examples(numbers[first : first + batch_size]) for first in numbers[::batch_size]]


def main() -> None:
    """Two batches of four rows and an even number of windows, a half for each process."""
    torch.set_num_threads(1)

    def found(several: Processes) -> Iterator[tuple[str, Step]]:
        for name, weights in WEIGHTS.items():
            sequence = conversations(LENGTHS)
            sequence = sequence if weights is None else weights.applied(sequence)
            rows = Batches(sequence, 4, 64, 1, document_rows(sequence))
            yield f"{name}, rows", step("attention", [rows.batch(0), rows.batch(1)], several)
            yield f"{name}, packed", step("attention", packed_batches(sequence, 16, 2, 1), several)

    with join_processes() as several:
        steps = {name: each.summary() for name, each in found(several)}
    print(json.dumps(steps))


if __name__ == "__main__":
    sys.exit(main())
