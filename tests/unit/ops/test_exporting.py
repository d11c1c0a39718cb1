"""What is compiled is not taken for what is exported."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from linnet.ops.exporting import is_exporting


def asked(x: Tensor) -> Tensor:
    return x + 1 if is_exporting() else x


class Asking(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return asked(x)


def test_it_is_true_of_a_graph_alone():
    x = torch.zeros(2)
    assert torch.equal(asked(x), x)
    assert torch.equal(torch.export.export(Asking(), (x,), strict=False).module()(x), x + 1)


def test_pytorch_may_say_of_what_is_compiled_that_it_is_exported(monkeypatch: pytest.MonkeyPatch):
    said = SimpleNamespace(is_exporting=lambda: True, is_dynamo_compiling=torch.compiler.is_dynamo_compiling)
    monkeypatch.setattr("linnet.ops.exporting.torch", SimpleNamespace(compiler=said))  # as 2.11 does
    x = torch.zeros(2)
    assert torch.equal(torch.compile(asked, backend="eager")(x), x)
