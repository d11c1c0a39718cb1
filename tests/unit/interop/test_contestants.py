"""Models of Transformers beside ours: the shape of GPT-Neo, small."""

from pathlib import Path

import pytest
import torch
import yaml
from small_originals import tokenizer

from linnet.core.errors import UserError
from linnet.experiments.measures import CacheTimes, OtherModel
from linnet.experiments.protocol import check
from linnet.experiments.suite import Suite
from linnet.interop.contestants import contestants
from linnet.model.spec import ModelSpec

transformers = pytest.importorskip("transformers")
SHIPPED = Path(__file__).parents[3] / "experiments" / "caches.yaml"
NEO = yaml.safe_load(SHIPPED.read_text())["measures"]["cache_times"]["against"][0]["config"]
SMALL = {**NEO, "hidden_size": 24, "vocab_size": 99, "max_position_embeddings": 20}
SPEC = CacheTimes(prompt_tokens=4, tokens=6, runs=1)
CPU = torch.device("cpu")


def test_generation_with_and_without_the_cache_is_equal():
    without, with_cache = contestants(OtherModel(name="neo", config=SMALL), SPEC, CPU)
    assert (without.caches.label, with_cache.caches.label) == ("none", "KV")
    assert without.generate() == with_cache.generate()
    for one in (without, with_cache):
        check(one, SPEC.tokens)


def test_the_shipped_shape_is_that_of_the_preset():
    (other,) = Suite.load(SHIPPED).measures.cache_times.against
    preset = ModelSpec.load("gpt-neo-125m")
    shape = (other.config["vocab_size"], other.config["hidden_size"], other.config["num_layers"])
    assert shape == (preset.vocab_size, preset.d_model, preset.layers)
    assert other.config["max_position_embeddings"] == preset.context_length


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt_neon"}, "neo: config: Transformers cannot build it"),
        ({"num_layers": 3}, "neo: config: Transformers cannot build it"),
        ({"max_position_embeddings": 9}, "neo: reads 9 tokens"),
    ],
)
def test_what_cannot_be_made_is_one_line(change, message):
    with pytest.raises(UserError, match=message) as caught:
        contestants(OtherModel(name="neo", config={**SMALL, **change}), SPEC, CPU)
    assert "\n" not in str(caught.value)


def test_a_downloaded_one_writes_on_where_it_would_end(tmp_path):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(**{**SMALL, "vocab_size": 290})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = list(range(290))
    model.save_pretrained(tmp_path / "neo")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer()).save_pretrained(tmp_path / "neo")
    every = contestants(OtherModel(name="neo", folder=str(tmp_path / "neo")), SPEC, CPU)
    for one in every:
        check(one, SPEC.tokens)
    assert every[0].parameters == sum(parameter.numel() for parameter in model.parameters())
    with pytest.raises(UserError, match="no-such"):
        contestants(OtherModel(name="neo", folder="no-such"), SPEC, CPU)
