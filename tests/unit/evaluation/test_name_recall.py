"""How often a model names the right one."""

import pytest
import torch
from torch import nn

from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.evaluation.models import ModelOnData
from linnet.evaluation.name_recall import NameRecall, measure_name_recall
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

NAMES = ("Lily", "Tom", "Ben")
HELD_OUT = ["Lily met Tom. Then Lily ran, and Tom slept. Tomorrow Lily is 5.", "Nobody.", "Ben saw a bird. Ben sang."]
LATER_MENTIONS = 4


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / request.param
    size = {"vocab_size": 300} if request.param == "bpe" else {}
    prepare_texts([text.replace("sang", "hid") for text in HELD_OUT] * 9, HELD_OUT, folder, request.param, **size)
    return TokenData.open(folder)


class Knows(nn.Module):
    """Predicts the next token of the split, but for those that it gets wrong."""

    causal, device = True, torch.device("cpu")

    def __init__(self, data, wrong=()):
        super().__init__()
        self.tokens, self.wrong = data.split("validation"), wrong
        self.vocab_size = data.manifest.tokenizer.vocab_size

    def forward(self, inputs_BT, state):
        all_T = torch.from_numpy(self.tokens.read(0, len(self.tokens)))
        logits = torch.zeros(*inputs_BT.shape, self.vocab_size)
        for row, inputs_T in enumerate(inputs_BT):
            known = next(at for at in range(len(all_T)) if all_T[at : at + 3].equal(inputs_T[:3]))
            following = all_T[known + 1 : known + 1 + len(inputs_T)]
            for place, token in enumerate(following.tolist()):
                logits[row, place, (token + 1) % self.vocab_size if token in self.wrong else token] = 1.0
        return logits


def measured(data, decoder, context_length=200):
    return measure_name_recall(ModelOnData(decoder, data, "validation", context_length, "train"), NAMES)


def test_every_later_mention_counts_once(data):
    assert measured(data, Knows(data)) == NameRecall(LATER_MENTIONS, LATER_MENTIONS)


def test_wrong_names_are_not_counted_as_right(data):
    text = "Lily met Tom"
    first_of_tom = next(token for token in data.tokenizer.encode(text) if "T" in data.tokenizer.decode([token]))
    found = measured(data, Knows(data, wrong={first_of_tom}))
    assert found.mentions == LATER_MENTIONS and found.right == LATER_MENTIONS - 1
    assert found.share == pytest.approx(0.75)


def test_mentions_beyond_the_context_are_not_counted(data):
    assert measured(data, Knows(data), context_length=4).mentions < LATER_MENTIONS
    assert measured(data, Knows(data), context_length=4).share in (None, 1.0)


@pytest.mark.parametrize("preset", ["tiny-attention", "tiny-pldr", "tiny-ted"])
def test_untrained_models_recall_few_names(data, preset):
    torch.manual_seed(0)
    spec = ModelSpec.load(preset).model_copy(update={"vocab_size": data.manifest.tokenizer.vocab_size})
    assert measured(data, Decoder(spec)).right <= 1
