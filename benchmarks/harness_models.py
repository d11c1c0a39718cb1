"""One Llama twice for the LM Evaluation Harness: ours behind `HarnessModel`, Transformers' behind the harness's `HFLM`.

Both have the same weights and the same tokenizer, and begin a document with the end token.
"""

import logging
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from llamas import llama_spec, transformers_llama, with_weights_of

END = "<|end|>"


def both(
    tokenizer: Tokenizer,
    width: int,
    layers: int,
    heads: int,
    context_length: int,
    dtype: torch.dtype,
    spread: float = 1,
) -> tuple[LanguageModel, LlamaForCausalLM]:
    """A new Llama; `spread` multiplies the standard deviations of the initial embedding and head."""
    attention = {"kind": "attention", "heads": heads}
    spec = llama_spec(tokenizer.vocab_size, width, layers, attention, 4 * width, context_length)
    ends = {f"{name}_token_id": tokenizer.end_id for name in ("bos", "eos", "pad")}
    theirs = transformers_llama(spec, **ends).to(dtype).eval()
    with torch.no_grad():
        for weight in (theirs.model.embed_tokens.weight, theirs.lm_head.weight):
            weight.mul_(spread)
    return LanguageModel(with_weights_of(theirs, spec).eval(), tokenizer), theirs


def hflm(theirs: LlamaForCausalLM, tokenizer: Tokenizer, batch: int, begins: bool = True) -> Any:
    """The harness's own model, on a processor. `begins`: the end token precedes every text."""
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    context = theirs.config.max_position_embeddings
    options = {"tokenizer": _transformers_tokenizer(tokenizer), "max_length": context, "add_bos_token": begins}
    return HFLM(theirs, device="cpu", batch_size=batch, dtype=theirs.dtype, **options)


def _transformers_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same tokens, with the end token before a text."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder) / "tokenizer.json")
        library = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    library.post_processor = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, tokenizer.end_id)])
    return PreTrainedTokenizerFast(tokenizer_object=library, bos_token=END, eos_token=END, pad_token=END)
