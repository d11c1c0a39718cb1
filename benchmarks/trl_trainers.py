"""A trainer of TRL that takes a step whenever it is told to, for `post_training.py`; runs in a Python that has TRL.

    python benchmarks/trl_trainers.py JOB.json

JOB.json: the kind of trainer, a model folder of Transformers, rows of tokens in the order in which they are read, and
settings. A line on the input begins a step; a line of JSON on the output tells what it took and what came out: wall and
processor seconds, the loss, the gradient norm before clipping, the tokens that were drawn. Rows are read as tokens, so
that both contestants learn from the same ones.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

OWN = {"report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True}
"""Float32, and the gradients of a step without computing it twice."""


def reward(row: dict[str, Any], answer: str) -> float:
    """What an answer earns with both: the share of its characters that are a "u", which no control token has."""
    return answer.count("u") / max(1, len(answer))


def settings(job: dict[str, Any], folder: str, **fields: Any) -> dict[str, Any]:
    """What all trainers are told."""
    beta1, beta2 = job["betas"]
    return {
        "output_dir": folder, "max_steps": job["steps"], "learning_rate": job["lr"], "lr_scheduler_type": "constant",
        "adam_beta1": beta1, "adam_beta2": beta2, "weight_decay": 0.0, "max_grad_norm": 1.0, "save_strategy": "no",
        "train_sampling_strategy": "sequential", "per_device_train_batch_size": job["batch"], **OWN, **fields,
    }  # fmt: skip


def sft(job: dict[str, Any], model: Any, tokenizer: Any, folder: str) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    # Without a longest length, nothing is cut; without padding, a batch is one row.
    arguments = SFTConfig(**settings(job, folder, max_length=None, padding_free=job["padding_free"]))
    return SFTTrainer(model, arguments, train_dataset=Dataset.from_list(job["rows"]), processing_class=tokenizer)


def dpo(job: dict[str, Any], model: Any, tokenizer: Any, folder: str) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer

    class GivenTokens(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    arguments = DPOConfig(
        **settings(job, folder, beta=job["beta"], max_length=None, precompute_ref_log_probs=job["reference_stored"])
    )
    reference = AutoModelForCausalLM.from_pretrained(job["model"])
    data = Dataset.from_list(job["rows"])
    return GivenTokens(model, reference, arguments, train_dataset=data, processing_class=tokenizer)


def grpo(job: dict[str, Any], model: Any, tokenizer: Any, folder: str) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class GivenTokens(GRPOTrainer):
        """Its prompts are tokens in JSON, and so are the answers of the first step."""

        answers: list[list[int]] | None = None
        drawn = 0

        def _tokenize_prompts(self, prompts: list[str]) -> Any:
            return [json.loads(prompt) for prompt in prompts], None, {}

        def _generate_single_turn(self, *arguments: Any) -> Any:
            if self.answers is None:
                answers, extra = super()._generate_single_turn(*arguments)
            else:
                answers, extra = self.answers, None
                self.answers = None
            self.drawn = sum(map(len, answers))
            return answers, extra

    def rewards(completions: list[str], **_: Any) -> list[float]:
        return [reward({}, completion) for completion in completions]

    arguments = GRPOConfig(
        **settings(
            job, folder, loss_type="dapo", scale_rewards="none", beta=job["kl"], num_generations=job["group"],
            max_completion_length=job["max_tokens"], shuffle_dataset=False, use_bias_correction_kl=False,
        )
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": json.dumps(row)} for row in job["rows"]])
    return GivenTokens(model, rewards, arguments, train_dataset=data, processing_class=tokenizer)


KINDS = {"sft": sft, "dpo": dpo, "grpo": grpo}


def measured(trainer: Any, out: TextIO) -> Any:
    """A callback that waits for its turn before each step, everything of which is measured."""
    from transformers import TrainerCallback

    found: dict[str, Any] = {}
    take_step, clip = trainer.training_step, trainer.accelerator.clip_grad_norm_

    def step(*arguments: Any, **named: Any) -> Any:
        loss = take_step(*arguments, **named)
        found["loss"] = float(loss)
        return loss

    def clipped(*arguments: Any, **named: Any) -> Any:
        norm = clip(*arguments, **named)
        found["gradient_norm"] = float(norm)
        return norm

    trainer.training_step, trainer.accelerator.clip_grad_norm_ = step, clipped

    class Turns(TrainerCallback):
        def wait(self) -> None:
            line = sys.stdin.readline()
            if not line:
                os._exit(0)  # nobody measures any more
            trainer.answers = json.loads(line).get("answers")
            self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            print(json.dumps({"ready": True}), file=out, flush=True)
            self.wall_s = self.cpu_s = 0.0
            self.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            took = {"wall_s": time.perf_counter() - self.wall_s, "cpu_s": time.process_time() - self.cpu_s}
            line = took | found | {"drawn": getattr(trainer, "drawn", 0)}
            print(json.dumps(line), file=out, flush=True)
            self.wait()

    return Turns()


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no line of this protocol
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    # Its embedding of the padding token would get no gradient, and that token begins each text as well.
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, pad_token_id=None)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    folder = str(Path(sys.argv[1]).parent / "trl")
    trainer = KINDS[job["kind"]](job, model, tokenizer, folder)
    trainer.add_callback(measured(trainer, out))
    trainer.train()


if __name__ == "__main__":
    main()
