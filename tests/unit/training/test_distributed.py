"""What is not sharded is its own only shard; shards themselves are in `tests/contracts/test_processes.py`."""

import torch
from torch import nn

from linnet.training.distributed import as_shard, is_sharded, local, part_of, whole


def test_a_plain_tensor_is_its_own_shard():
    parameter, tensor = nn.Parameter(torch.ones(3)), torch.zeros(3)
    for each in (parameter, tensor):
        assert not is_sharded(each) and local(each) is each and whole(each) is each
        assert as_shard(tensor, each) is tensor and part_of(tensor, each) is tensor
