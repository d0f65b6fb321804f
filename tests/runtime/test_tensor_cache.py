import os

import pytest
import torch

from ralseg.errors import ConfigError
from ralseg.runtime.tensor_cache import TensorCache


@pytest.mark.parametrize("ram_items", [0, 3, 10])
def test_each_item_is_made_once_in_ram_or_on_disk(tmp_path, ram_items):
    made = []

    def make(index):
        made.append(index)
        return torch.full((2, 3), index, dtype=torch.uint8)

    cache = TensorCache(make, 10, (2, 3), torch.uint8, ram_bytes=ram_items * 6, folder=tmp_path)
    assert cache.num_in_ram == ram_items
    for index in (0, 9, 4, 9, 0, 4):
        assert (cache[index] == index).all()
    assert made == [0, 9, 4]
    assert cache.stack([9, 0])[:, 0, 0].tolist() == [9, 0]
    assert not list(tmp_path.iterdir()), "the file must be gone even while it is in use"


def test_forked_workers_fill_the_parents_copy(tmp_path):
    cache = TensorCache(lambda i: torch.full((4,), i * 1.5), 6, (4,), torch.float32, 48, tmp_path)
    child = os.fork()
    if child == 0:
        for index in (1, 5):  # one in RAM, one on disk
            cache[index]
        os._exit(0)
    os.waitpid(child, 0)
    assert [index in cache for index in range(6)] == [False, True, False, False, False, True]
    assert cache[5].tolist() == [7.5] * 4


def test_a_cache_larger_than_the_disk_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"GB on disk, but .* GB free; set data\.cache_folder"):
        TensorCache(None, 10**9, (10**6,), torch.float32, 0, tmp_path)


def test_a_cache_that_a_test_has_made_serves_a_training():
    with torch.inference_mode():
        cache = TensorCache(None, 2, (3,), torch.float32, 1000)
        cache.put(0, torch.ones(3))
    cache.put(1, torch.ones(3))  # not in inference mode: what was made in it could not be written to
    weight = torch.ones(3, requires_grad=True)
    (cache[0] * weight).sum().backward()
    assert weight.grad.tolist() == [1, 1, 1]


def test_put_only_caches_do_not_make():
    cache = TensorCache(None, 2, (1,), torch.float32, 100)
    with pytest.raises(KeyError):
        cache[0]
    cache.put(0, torch.ones(1))
    assert cache[0].item() == 1
    cache.clear()
    assert 0 not in cache
