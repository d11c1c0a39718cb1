import platform

import pytest
import torch

from linnet.ops.native import pages
from linnet.ops.native.pages import PAGE, in_huge_pages


def test_a_large_tensor_is_the_same_in_memory_that_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(pages, "_madvise", lambda: lambda *given: asked.append(given) or -1)
    x = torch.randint(-9, 9, (5 * PAGE // 7, 7), dtype=torch.int8)
    found = in_huge_pages(x)
    assert torch.equal(found, x) and found.data_ptr() != x.data_ptr()
    ((first, count, _),) = asked
    assert first % PAGE == count % PAGE == 0 < count
    assert found.data_ptr() <= first and first + count <= found.data_ptr() + found.nbytes
    small = torch.zeros(PAGE, dtype=torch.int8)
    assert in_huge_pages(small) is small and len(asked) == 1


@pytest.mark.skipif(platform.system() != "Linux", reason="another system")
def test_the_system_may_answer_what_it_likes():
    x = torch.randn(3, PAGE // 4)
    assert torch.equal(in_huge_pages(x), x)
