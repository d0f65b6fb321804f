"""Features of a frozen encoder that outlive a run: the same, or made anew when anything differs."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, SmpSegmenter
from support.data import make_folder, write_png


def make_kept_data(tmp_path, **options) -> SegmentationData:
    root = tmp_path / "data"
    if not root.exists():
        make_folder(root, size=(64, 96))
    data = SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), layout=GridLayout(2, 2), cache_folder=str(tmp_path), **options
    )
    data.setup()
    return data


def encoded_images(network: SmpSegmenter, data: SegmentationData, calls: list) -> list[torch.Tensor]:
    """Features of two images; notes each time the encoder is asked."""
    encode = type(network).encode

    def counted(image):
        calls.append(len(image))
        return encode(network, image)

    network.encode = counted
    network.eval().prepare(data)
    index = torch.tensor([0, 1])
    return network.encoded(data.images.stack(index), index, torch.tensor([False, True]))


def frozen(seed: int = 0) -> SmpSegmenter:
    torch.manual_seed(seed)
    return SmpSegmenter(
        ("a", "b", "c"), encoder="tu-test_resnet", encoder_weights="none", freeze_encoder=True, cache_features=True
    )


def test_features_outlive_a_run_and_are_the_same(tmp_path):
    calls: list = []
    first = encoded_images(frozen(), make_kept_data(tmp_path), calls)
    assert len(calls) == 2
    again = encoded_images(frozen(), make_kept_data(tmp_path), calls)
    assert len(calls) == 2
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_processes_share_what_lies_in_files(tmp_path):
    network = frozen()
    encoded_images(network, make_kept_data(tmp_path), [])
    assert network.features._cache.num_lent == 2
    network.features.clear()
    encoded_images(network, make_kept_data(tmp_path / "other", copies_gb=0), [])
    assert network.features._cache.num_lent == 0


def encode_as_one_of_several(folder: Path, log: Path) -> None:
    """Encode all images of a data set, as one of several processes that begin at once."""
    torch.set_num_threads(1)
    network, data = frozen(), make_kept_data(folder)
    encode = type(network).encode

    def counted(image):
        with log.open("a") as file:
            file.write("encoded\n")
        return encode(network, image)

    network.encode = counted
    network.eval().prepare(data)
    index = torch.arange(len(data.dataset))
    network.encoded(data.images.stack(index), index)


def test_of_two_processes_one_encodes_an_image(tmp_path):
    images = len(make_kept_data(tmp_path).dataset)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=encode_as_one_of_several, args=(tmp_path, tmp_path / "log.txt")) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len((tmp_path / "log.txt").read_text().split()) == images


@pytest.mark.parametrize("change", ["weights", "size", "file"])
def test_other_features_are_made_when_anything_differs(tmp_path, change):
    calls: list = []
    before = encoded_images(frozen(), make_kept_data(tmp_path), calls)
    network, data = frozen(seed=1 if change == "weights" else 0), make_kept_data(tmp_path)
    if change == "size":
        data = make_kept_data(tmp_path, size=(32, 48))
    if change == "file":
        write_png(data.dataset.image_paths[0], np.zeros((64, 96, 3), np.uint8))
        data = make_kept_data(tmp_path)
    after = encoded_images(network, data, calls)
    assert len(calls) == (3 if change == "file" else 4)
    assert before[0].shape != after[0].shape or not torch.equal(before[0], after[0])


def test_weights_that_were_loaded_in_place_are_noticed(tmp_path):
    calls: list = []
    network, data = frozen(), make_kept_data(tmp_path)
    before = encoded_images(network, data, calls)
    network.load_state_dict(frozen(seed=1).state_dict())
    network.features.clear()
    after = encoded_images(network, data, calls)
    assert not torch.equal(before[0], after[0])


def test_another_data_set_of_the_same_length_has_features_of_its_own(tmp_path):
    calls: list = []
    network = frozen()
    before = encoded_images(network, make_kept_data(tmp_path / "one"), calls)
    other = make_kept_data(tmp_path / "two")
    write_png(other.dataset.image_paths[0], np.zeros((64, 96, 3), np.uint8))
    other = make_kept_data(tmp_path / "two")
    after = encoded_images(network, other, calls)
    assert not torch.equal(before[0][0], after[0][0])


def unet(seed: int = 0) -> SmpSegmenter:
    torch.manual_seed(seed)
    return SmpSegmenter(
        ("a", "b", "c"), arch="Unet", encoder="tu-test_resnet", encoder_weights="none", freeze_encoder=True,
        cache_features=True,
    )  # fmt: skip


@pytest.mark.parametrize("make", [frozen, unet])
def test_features_of_lower_precision_are_not_left_to_others(tmp_path, make):
    calls: list = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded_images(make(), make_kept_data(tmp_path), calls)
    exact = encoded_images(make(), make_kept_data(tmp_path / "fresh"), calls)
    found = encoded_images(make(), make_kept_data(tmp_path), calls)
    assert all(torch.equal(a, b) for a, b in zip(exact, found, strict=True))


def test_the_first_image_too_is_taken_from_what_is_kept(tmp_path):
    """A resumed run may begin with another image: the bits of none may depend on which was first."""
    data = make_kept_data(tmp_path)
    network = frozen().eval()
    network.prepare(data)
    network.encoded(data.images.stack([1]), torch.tensor([1]))
    keys = {path for path in tmp_path.rglob("*.copy") if path.stat().st_size > 3 * 64 * 96}
    assert len(keys) == 1


def test_a_closed_form_notices_another_way_to_scale(tmp_path):
    make_folder(tmp_path / "data", size=(64, 64))
    dataset = Folder(str(tmp_path / "data"))
    net = ClosedFormSegmenter(("a", "b", "c"), encoder="tu-test_resnet", encoder_weights="none", components=8)
    found = []
    for resize in ("pad", "stretch"):
        data = SegmentationData(
            dataset, SplitSizes(state=1, train=2), size=(64, 96), resize=resize, layout=GridLayout(2, 2),
            cache_folder=str(tmp_path),
        )  # fmt: skip
        data.setup()
        net.prepare(data)
        index = torch.tensor([0])
        found.append(net.pixel_features(data.images.stack(index), index))
    assert not torch.equal(*found)


def test_what_an_image_looks_like_has_no_padding_in_it(tmp_path):
    make_folder(tmp_path / "data", size=(64, 64))
    data = make_kept_data(tmp_path, size=(64, 128))
    net = ClosedFormSegmenter(("a", "b", "c"), encoder="tu-test_resnet", encoder_weights="none", components=8)
    net.prepare(data)
    image, index = data.images.stack([0]), torch.tensor([0])
    grid = net.pixel_features(image, index)[0]
    half = grid.shape[1] // 2
    assert torch.allclose(
        net.predict_batch(image, index).frame([(1.0, 0.5)])[0], grid[:, :half].mean((0, 1)), atol=1e-6
    )
    fpn = frozen().eval()
    fpn.prepare(data)
    seen = fpn.predict_batch(image, index)
    maps = seen.embedding()
    assert torch.allclose(seen.frame([(1.0, 0.5)])[0], maps[0, :, :, : maps.shape[-1] // 2].mean((1, 2)))
