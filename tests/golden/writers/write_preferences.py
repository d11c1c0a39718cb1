"""Writes `preferences_small.safetensors` with the losses of TRL's trainers on pairs of answers by small Llamas.

DPO and IPO by `DPOTrainer`, the reward model by `RewardTrainer`, each by its `compute_loss`; the odds ratio of ORPO by
`ORPOTrainer.odds_ratio_loss` (its likelihood part is that of prompt and answer, the paper's of the answer alone).

`pip install trl==1.16.0 accelerate transformers==5.23.0 torch==2.13.0`, then
`python tests/golden/writers/write_preferences.py`.
"""

import tempfile
from importlib.metadata import version

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from trl.experimental.orpo import ORPOTrainer
from writing import write

VOCABULARY, BETA = 32, 0.1
LENGTHS = [(5, 7, 3), (2, 1, 9), (9, 4, 4), (3, 12, 2)]
"""Of the prompt, the chosen and the rejected answer of each pair."""

CONFIG = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip


def llama(kind: type, seed: int, weights: dict[str, Tensor] | None = None) -> nn.Module:
    torch.manual_seed(seed)
    model = kind(LlamaConfig(**CONFIG, num_labels=1)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    """A trainer wants one; what it encodes is not used."""
    words = {"<pad>": 0, "<end>": 1} | {chr(95 + number): number for number in range(2, VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")


def norm(model: nn.Module) -> Tensor:
    """Of all gradients together."""
    squares = [parameter.grad.square().sum() for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack(squares).sum().sqrt()


def filled(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def main() -> None:
    generator = torch.Generator().manual_seed(3)
    parts = [[torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in each] for each in LENGTHS]
    answers = [(prompt, pair[side]) for side in (0, 1) for prompt, *pair in parts]
    rows, masks = [a + b for a, b in answers], [[0] * len(a) + [1] * len(b) for a, b in answers]
    attention = filled([[1] * len(row) for row in rows])
    inputs = {"input_ids": filled(rows), "attention_mask": attention, "completion_mask": filled(masks)}
    reference, policy = (llama(LlamaForCausalLM, seed).state_dict() for seed in (0, 1))
    mixed = {name: 0.9 * reference[name] + 0.1 * policy[name] for name in policy}
    own = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    found: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, loss_type in (("dpo", "sigmoid"), ("ipo", "ipo")):
            models_ = [llama(LlamaForCausalLM, 0, weights) for weights in (mixed, reference)]
            data = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
            settings = DPOConfig(folder, loss_type=loss_type, beta=BETA, **own)
            trainer = DPOTrainer(*models_, args=settings, train_dataset=data, processing_class=tokenizer())
            loss = trainer.compute_loss(trainer.model, dict(inputs))
            loss.backward()
            found |= {f"{kind}.loss": loss.detach(), f"{kind}.norm": norm(trainer.model)}
        judge = llama(LlamaForSequenceClassification, 2, {k: v for k, v in mixed.items() if k != "lm_head.weight"})
        data = Dataset.from_list([{"chosen": "b", "rejected": "c"}] * 4)
        trainer = RewardTrainer(judge, RewardConfig(folder, **own), train_dataset=data, processing_class=tokenizer())
        before_end = {name: inputs[name][:, :-1].clone() for name in ("input_ids", "attention_mask")}
        for number, row in enumerate(rows):  # the last token is the stop token, which no answer is judged by
            for each in before_end.values():
                each[number, len(row) - 1 :] = 0
        loss = trainer.compute_loss(trainer.model, before_end)
        loss.backward()
        found |= {"reward.loss": loss.detach(), "reward.norm": norm(trainer.model)}
    model = llama(LlamaForCausalLM, 0, mixed)
    logits = model(inputs["input_ids"], attention_mask=attention).logits
    labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
    means = ORPOTrainer.get_batch_logps(logits, labels, average_log_prob=True)
    self = type("Settings", (), {"beta": BETA, "accelerator": type("Cpu", (), {"device": "cpu"})})
    odds, *_ = ORPOTrainer.odds_ratio_loss(self, *means.chunk(2))
    loss = (-means[: len(LENGTHS)] - odds).mean()
    loss.backward()
    found |= {"orpo.loss": loss.detach(), "orpo.norm": norm(model)}
    for name, weights in (("policy", mixed), ("reference", reference)):
        found |= {f"{name}.{key}": tensor.detach() for key, tensor in weights.items()}
    found["value"] = judge.score.weight.detach()[0]
    pairs = [{"prompt": a, "chosen": b, "rejected": c} for a, b, c in parts]
    versions = {name: version(name) for name in ("trl", "transformers", "torch")}
    write("preferences_small.safetensors", found, {"pairs": pairs, "beta": BETA, "llama": CONFIG, **versions})


if __name__ == "__main__":
    main()
