"""Writes `grpo_small.safetensors` with the losses of TRL's `GRPOTrainer` on answers drawn by a small Llama.

Advantages, log-probabilities of the drawing model and of the reference, and the loss are the trainer's own; only the
answers and their rewards are given to it. The policy differs from the model that drew, so that ratios are clipped. The
divergence is the paper's (TRL multiplies it by the ratio unless `use_bias_correction_kl=False`).

`pip install trl==1.16.0 accelerate transformers==5.23.0 torch==2.13.0`, then
`python tests/golden/writers/write_grpo.py`.
"""

import tempfile
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from write_preferences import CONFIG, VOCABULARY, llama, norm, tokenizer
from writing import write

PROMPTS, GROUP, CLIP, KL = (3, 6), 4, 0.2, 0.3
ANSWERS = [5, 9, 2, 7, 4, 1, 8, 3]
"""Tokens of each, one group after the other."""

REWARDS = [0.0, 1.0, 0.25, 1.0, 0.5, 0.5, 0.0, 0.75]
CASES: dict[str, dict[str, Any]] = {
    "mean": {"scale_rewards": "none", "beta": 0.0},
    "std": {"scale_rewards": "group", "beta": 0.0},
    "kl": {"scale_rewards": "none", "beta": KL},
}


class GivenAnswers(GRPOTrainer):
    """Its prompts and answers are given as tokens."""

    given_prompts: list[list[int]]
    given_answers: list[list[int]]

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        return self.given_prompts, None, {}

    def _generate_single_turn(self, *_: Any) -> Any:
        return self.given_answers, None


def case(
    settings: dict[str, Any], loss_type: str, models: dict[str, dict[str, Tensor]], rows: list[tuple[list[int], ...]]
) -> tuple[Tensor, nn.Module, dict[str, Any]]:
    """The loss, the model with its gradients, and what the loss was computed from."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
        arguments = GRPOConfig(
            folder, loss_type=loss_type, epsilon=CLIP, num_generations=GROUP, per_device_train_batch_size=len(rows),
            num_iterations=2, max_completion_length=max(ANSWERS), use_bias_correction_kl=False, **settings, **own,
        )  # fmt: skip
        model = llama(LlamaForCausalLM, 0, models["drawn"])
        model.save_pretrained(folder)
        model.config._name_or_path = folder
        trainer = GivenAnswers(
            model, lambda completions, **_: REWARDS, arguments, Dataset.from_list([{"prompt": "a"}] * 2),
            processing_class=tokenizer(),
        )  # fmt: skip
        trainer.given_prompts, trainer.given_answers = ([row[part] for row in rows] for part in (0, 1))
        if settings["beta"]:
            trainer.ref_model.load_state_dict(models["reference"])
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * len(rows))
        trainer.model.load_state_dict(models["policy"])
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        return loss.detach(), trainer.model, inputs


def main() -> None:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in PROMPTS]
    answers = [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in ANSWERS]
    rows = [(prompts[number // GROUP], answer) for number, answer in enumerate(answers)]
    drawn, other, reference = (llama(LlamaForCausalLM, seed).state_dict() for seed in (0, 1, 2))
    policy = {name: 0.7 * drawn[name] + 0.3 * other[name] for name in drawn}
    models = {"drawn": drawn, "policy": policy, "reference": reference}
    found: dict[str, Tensor] = {}
    for name, settings in CASES.items():
        loss, model, inputs = case(settings, "dapo", models, rows)
        found |= {f"{name}.loss": loss, f"{name}.norm": norm(model), f"{name}.advantages": inputs["advantages"]}
        found |= {f"{name}.loss.{form}": case(settings, form, models, rows)[0] for form in ("bnpo", "dr_grpo")}
        if name == "kl":
            found |= {f"gradient.{key}": parameter.grad for key, parameter in model.named_parameters()}
    found |= {f"{name}.{key}": tensor for name, weights in models.items() for key, tensor in weights.items()}
    versions = {name: version(name) for name in ("trl", "transformers", "torch")}
    config = {"rows": rows, "rewards": REWARDS, "group": GROUP, "clip": CLIP, "kl": KL, "llama": CONFIG, **versions}
    write("grpo_small.safetensors", found, config)


if __name__ == "__main__":
    main()
