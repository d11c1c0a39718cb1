"""Losses of drawn answers by TRL's GRPO trainer, and their gradients, reproduced on the weights of a small Llama.

Ours is the form that TRL calls `dapo`: the mean over all tokens of all answers. Its file is made by
`writers/write_grpo.py`.
"""

from typing import Any

import pytest
import torch

from golden_file import Named, assert_same, below, llama_of, llama_spec, read
from linnet.data.loader import Batch
from linnet.interop.tensor_names import LLAMA
from linnet.model.example_loss import example_nats
from linnet.training.objectives.grpo import ADVANTAGE, CUT, DRAWN, REFERENCE_NATS, REWARD, advantages, grpo_loss
from linnet.training.sections import GrpoSpec

Golden = tuple[Named, dict[str, Any]]
CASES = {"mean": {}, "std": {"scale_by_std": True}, "kl": {"kl": 0.3}}


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read("grpo_small.safetensors")


def batch_of(golden: Golden, spec: GrpoSpec) -> Batch:
    """The answers behind their prompts, with what the drawing model and the reference think of them."""
    tensors, config = golden
    rows = [(*prompt, *answer) for prompt, answer in config["rows"]]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    counted = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (prompt, _) in enumerate(config["rows"]):
        tokens[row, : len(rows[row])] = torch.tensor(rows[row])
        counted[row, len(prompt) : len(rows[row])] = True
    rewards = torch.tensor(config["rewards"], dtype=torch.float64)
    extras = {REWARD: rewards, CUT: torch.zeros(len(rows))}
    extras[ADVANTAGE] = advantages(rewards, spec.group, spec.scale_by_std)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], counted[:, 1:], extras=extras, rows_per_example=spec.group)
    for name, weights in ((DRAWN, "drawn"), (REFERENCE_NATS, "reference")):
        if name == DRAWN or spec.kl:
            with torch.no_grad():
                decoder = llama_of(below(tensors, weights), config["llama"])
                extras[name] = example_nats(decoder, batch.tokens, batch.labels).double()
    return batch


@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_its_gradients_are_those_of_trl(case: str, golden: Golden):
    """In one batch `bnpo` is the same; `dr_grpo` divides by the longest lengths instead of the tokens."""
    tensors, config = golden
    spec = GrpoSpec(group=config["group"], clip=config["clip"], **CASES[case])
    batch, decoder = batch_of(golden, spec), llama_of(below(tensors, "policy"), config["llama"])
    found = grpo_loss(decoder, batch, spec)
    loss = found.total / batch.total_weight
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    longest = max(len(answer) for _, answer in config["rows"])
    per_place = found.total / (len(batch) * longest)
    same = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(batch.extras[ADVANTAGE], tensors[f"{case}.advantages"], **same)
    for form, value in (("loss", loss), ("loss.bnpo", loss), ("loss.dr_grpo", per_place)):
        torch.testing.assert_close(value.detach(), tensors[f"{case}.{form}"], **same)
    torch.testing.assert_close(norm, tensors[f"{case}.norm"], **same)
    assert 0 < float(found.terms["clipped"]) < batch.count, "no token is at the bound, or all are"
    if case == "kl":
        expected = LLAMA.from_published(below(tensors, "gradient"), llama_spec(config["llama"]))
        assert_same(gradients, expected)
