"""Models that Transformers runs, timed beside linnet's: a shape with random weights, or a folder.

Legend: `N` generated tokens, `V` vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.experiments.measures import CacheTimes, OtherModel
from linnet.experiments.protocol import Contestant, draw_prompt
from linnet.inference.readers import Caches
from linnet.interop import optional_package
from linnet.interop.transformers_convert import load_original

NO_END = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Settings that make generation ignore end tokens, so that it always has the requested length."""


def contestants(other: OtherModel, spec: CacheTimes, device: torch.device) -> list[Contestant]:
    """Return the model without and with its KV cache; `UserError` if Transformers is missing or cannot build it."""
    model = _model(other).to(device)
    room = getattr(model.config, "max_position_embeddings", None)
    if room is not None and spec.prompt_tokens + spec.tokens > room:
        raise UserError(f"{other.name}: reads {room} tokens; expected at most that many of prompt and text together")
    prompt = draw_prompt(model.config.vocab_size, spec)
    return [_contestant(model, other.name, prompt, spec.tokens, kv) for kv in (False, True)]


def _model(other: OtherModel) -> Any:
    transformers = optional_package("transformers", "protocol")
    if other.folder is not None:
        model, _ = load_original(Path(other.folder), "protocol")
        model.generation_config = transformers.GenerationConfig(**NO_END)
        return model
    assert other.config is not None
    try:
        config = transformers.AutoConfig.for_model(**{**other.config, **NO_END})
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).float().eval()
    except Exception as error:  # every configuration class there has its own checks and errors
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{other.name}: config: Transformers cannot build it ({reason})") from error


def _contestant(model: Any, name: str, prompt: list[int], tokens: int, kv: bool) -> Contestant:
    prompt_1T = torch.tensor([prompt], device=model.device)
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "use_cache": kv}
    parameters = sum(parameter.numel() for parameter in model.parameters())

    @torch.inference_mode()
    def generate() -> list[int]:
        ids: list[int] = model.generate(prompt_1T, attention_mask=torch.ones_like(prompt_1T), **settings)[0].tolist()
        return ids[len(prompt) :]

    def logits_NV(ids: list[int]) -> Tensor:
        read_1T = torch.tensor([prompt + ids[:-1]], device=model.device)
        logits: Tensor = model(read_1T, use_cache=False).logits[0, len(prompt) - 1 :]
        return logits

    return Contestant(name, parameters, Caches(kv, calibration=False), generate, logits_NV)
