"""A process that was forked off one that has decoded with two threads says the same, and does not wait forever."""

import json
import subprocess
import sys

import pytest

LIMIT_S = 60
FORKED = """
import json, os, signal, sys
import torch
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

def say():
    text = model.generate("Once upon a time " * 20, 20, temperature=0, ignore_eos=True)
    print(torch.get_num_threads(), ascii(text), flush=True)

torch.set_num_threads(2)
torch.manual_seed(0)
tokenizer = Tokenizer.train("bytes", [])
block = {"repeat": 2, "mixer": json.loads(sys.argv[1]), "feed_forward": {"kind": "glu", "hidden": 256}}
shape = {"vocab_size": tokenizer.vocab_size, "d_model": 128, "context_length": 512, "blocks": [block]}
spec = ModelSpec.parse({**shape, "embedding": {}, "head": {"tied": True, "norm": {}}}, "test")
model = LanguageModel(Decoder(spec), tokenizer)
for weight in model.decoder.parameters():
    torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
say()
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
signal.alarm(int(sys.argv[2]))
say()
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads of GCC's OpenMP")
@pytest.mark.parametrize(
    "mixer", [{"kind": "attention", "heads": 4}, pytest.param({"kind": "ted"}, marks=pytest.mark.slow)], ids=str
)
def test_a_forked_process_decodes_with_one_thread(mixer: dict[str, object]):
    arguments = [sys.executable, "-c", FORKED, json.dumps(mixer), str(LIMIT_S)]
    found = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    threads, said = zip(*(line.split(" ", 1) for line in found.stdout.splitlines()), strict=True)
    assert sorted(threads) == ["1", "2"]
    assert len(set(said)) == 1
