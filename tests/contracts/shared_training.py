"""A few steps with every layer, in one process or in several; run as a program, it prints their losses as JSON.

`python shared_training.py first|every SHARD:PRECISION:OPTIMIZER...`: the first example of each kind, several in one
model, or every one alone; SHARD: the number of processes that share one copy of the weights.
"""

import json
import sys
from collections.abc import Sequence

import torch
from examples import ALL, PLACE, WIDTH, first_of_its_kind, name_of, randomized

from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.layers.contract import MixerSpec, SublayerSpec
from linnet.layers.cross_attention import CrossAttentionSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training import gradient_sums
from linnet.training.distributed import SINGLE_PROCESS, Processes, join_processes
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.spec import TrainingSpec
from linnet.training.step import Stepper

READING = CrossAttentionSpec.examples()[1]
TOGETHER = 7
"""As many kinds are in one model where the first examples are tested."""


def in_groups(specs: Sequence[SublayerSpec], size: int) -> list[tuple[SublayerSpec, ...]]:
    """Those with penalties are apart: their weights are not random. So is the one that needs an encoder."""
    penalized = [spec for spec in specs if spec.build(PLACE).penalties]
    others = [spec for spec in specs if spec not in penalized]
    parts = [part[at : at + size] for part in (others, penalized) for at in range(0, len(part), size)]
    return [*map(tuple, parts), (READING,)]


SHARED = {"first": in_groups([*filter(first_of_its_kind, ALL)], TOGETHER), "every": in_groups(ALL, 1)}
STEPS = {"first": 2, "every": 3}
ROWS, LENGTH, VOCABULARY = 4, 12, 11
PENALTY = {"dag": {"a_lm": 0.05, "a_p": 0.05, "g": 0.05}}
OPTIMIZERS = {"adamw": {}, "muon": {"kind": "muon", "cautious_decay": True, "muon": {"every": 2}}}


def model_of(*specs: SublayerSpec) -> ModelSpec:
    """The sublayers after another one, each then twice with shared weights; the head is tied."""
    plain = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 12}}
    blocks, encoder = [plain], None
    for spec in specs:
        own = {**plain, "mixer" if isinstance(spec, MixerSpec) else "feed_forward": spec}
        if isinstance(spec, CrossAttentionSpec):
            own, encoder = {**plain, "cross_attention": spec}, {"blocks": [plain], "norm": {"kind": "rms"}}
        blocks += [own, {**own, "repeat": 2, "share_weights": True}]
    settings = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 32, "embedding": {"positions": "learned"}}
    return ModelSpec.parse(
        {**settings, "blocks": blocks, "encoder": encoder, "head": {"norm": {"kind": "rms"}}}, "test"
    )


def batches(step: int) -> list[Batch]:
    """The two batches of a step with all rows; an encoder reads the first token of each row."""
    tokens = torch.randint(VOCABULARY, (2, ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return [Batch(part[:, :-1], part[:, 1:], prefix_lengths=(1,) * ROWS) for part in tokens]


def names_of(specs: Sequence[SublayerSpec]) -> str:
    return " ".join(map(name_of, specs))


def losses(
    specs: Sequence[SublayerSpec],
    several: Processes = SINGLE_PROCESS,
    precision: str = "float32",
    kind: str = "adamw",
    steps: int = STEPS["every"],
    **parallel: object,
) -> list:
    """For each step: nats per token, gradient norm, and the terms of the objective."""
    torch.manual_seed(several.rank)  # the first one's weights are everybody's
    decoder = Decoder(model_of(*specs))
    offered = any(sublayer.penalties for sublayer in decoder.sublayers)
    decoder = decoder if offered else randomized(decoder)  # penalties are beyond all bounds with weights so large
    training = TrainingSpec.parse({"parallel": parallel}, "test")
    decoder = decoder.double() if precision == "float64" else decoder
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32  # of the products, where it is less
    parts = ParallelModel(decoder, training, dtype, several)
    optimizer = build_optimizer(OptimizerSpec.parse(OPTIMIZERS[kind], "test"), decoder)

    def objective(decoder, batch):
        return next_token_loss(decoder, batch, PENALTY if offered else {})

    step = Stepper(parts, objective, optimizer, ClipSpec(at=0.5), dtype, ByteCounts.create([1] * VOCABULARY).to("cpu"))
    results = [step(batches(number), 1e-2) for number in range(steps)]
    return [[r.nats / r.tokens, r.gradient_norm, *(value / r.tokens for value in r.terms.values())] for r in results]


if __name__ == "__main__":
    torch.set_num_threads(1)
    gradient_sums.BUCKET_ELEMENTS = 500  # several buckets of models so small
    with join_processes() as all_of_them:
        found = {}
        for shard, precision, kind in (argument.split(":") for argument in sys.argv[2:]):
            for examples in SHARED[sys.argv[1]]:
                key = f"{names_of(examples)} {shard} {precision} {kind}"
                found[key] = losses(examples, all_of_them, precision, kind, STEPS[sys.argv[1]], shard=int(shard))
        print(json.dumps(found))
