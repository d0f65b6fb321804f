"""Copies that outlive a run: used when nothing has changed, never when something has."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.data.copies import KeptCopies
from ralseg.labels import GridLayout
from support.data import make_folder, write_png


@pytest.fixture
def decoded(monkeypatch) -> list[Path]:
    """Paths of images that are decoded from now on."""
    from ralseg.data import readers

    paths: list[Path] = []
    read = readers.read_image
    monkeypatch.setattr(readers, "read_image", lambda path: (paths.append(path), read(path))[1])
    return paths


def data_of(root: Path, cache: Path, size=(16, 24), **options) -> SegmentationData:
    data = SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), size=size, layout=GridLayout(2, 2),
        cache_folder=str(cache), **options,
    )  # fmt: skip
    data.setup()
    return data


def test_second_run_decodes_nothing_and_sees_the_same(tmp_path, decoded):
    root = make_folder(tmp_path / "data")
    first = [data.images[i].clone() for data in [data_of(root, tmp_path / "cache")] for i in range(10)]
    assert len(decoded) == 10
    again = data_of(root, tmp_path / "cache")
    assert all(torch.equal(again.images[i], image) for i, image in enumerate(first))
    assert len(decoded) == 10


def test_images_in_their_own_size_are_not_kept(tmp_path):
    data = data_of(make_folder(tmp_path / "data"), tmp_path / "cache", size=None)
    assert data.images[0].shape == (3, 32, 48)
    sizes = [path.stat().st_size for path in (tmp_path / "cache").rglob("*.copy")]
    assert max(sizes) < 3 * 32 * 48  # what is kept are class counts of masks


def test_copies_can_be_turned_off(tmp_path):
    data = data_of(make_folder(tmp_path / "data"), tmp_path / "cache", copies_gb=0)
    assert data.images[0].shape == (3, 16, 24)
    assert not (tmp_path / "cache").exists()


def test_changed_file_is_decoded_again_even_if_it_pretends_to_be_old(tmp_path):
    root = make_folder(tmp_path / "data")
    data_of(root, tmp_path / "cache").images[0]
    path = Folder(str(root)).image_paths[0]
    before = path.stat()
    write_png(path, np.full((32, 48, 3), 7, np.uint8))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (data_of(root, tmp_path / "cache").images[0] == 7).all()


def test_masks_follow_the_rule_that_reads_them(tmp_path):
    root = make_folder(tmp_path / "data")
    index = Folder(str(root)).subsets.index("val")
    data_of(root, tmp_path / "cache").masks[index]
    (root / "dataset.yaml").write_text("classes: [ground, plant]\nignore: 2\n")
    assert set(data_of(root, tmp_path / "cache").masks[index].unique().tolist()) == {0, 1, 255}


def test_a_class_that_reads_files_its_own_way_gets_no_copies(tmp_path):
    class Negative(Folder):
        def read_image(self, index):
            return 255 - super().read_image(index)

    dataset = Negative(str(make_folder(tmp_path / "data")))
    assert dataset.image_key(0) is None
    assert dataset.mask_key(0) is not None


@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b[:50] + bytes([b[50] ^ 1]) + b[51:], lambda b: b""])
def test_damaged_copy_is_made_anew(tmp_path, damage):
    copies = KeptCopies(tmp_path, 1_000_000)
    copies.get(["key"], lambda: np.arange(100))
    (path,) = tmp_path.rglob("*.copy")
    path.write_bytes(damage(path.read_bytes()))
    assert copies.get(["key"], lambda: np.arange(100) + 1)[0] == 1
    assert copies.get(["key"], lambda: np.arange(100) + 2)[0] == 1


def test_pickles_in_copies_are_not_read(tmp_path):
    import io
    import zlib

    copies = KeptCopies(tmp_path, 1_000_000)
    copies.get(["key"], lambda: np.arange(3))
    (path,) = tmp_path.rglob("*.copy")
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    path.write_bytes(zlib.crc32(buffer.getvalue()).to_bytes(4) + buffer.getvalue())
    assert copies.get(["key"], lambda: np.arange(3) + 5)[0] == 5


def test_least_recently_used_copies_go_first(tmp_path):
    copies = KeptCopies(tmp_path, 5_000)
    for number in range(4):
        copies.get([number], lambda: np.zeros(1_000, np.uint8))
    for path in tmp_path.rglob("*.copy"):
        os.utime(path, (1, 1))
    copies.get([0], lambda: np.zeros(1_000, np.uint8))  # used just now
    copies.get([4], lambda: np.zeros(1_000, np.uint8))
    assert copies.get([0], lambda: np.ones(1_000, np.uint8)).sum() == 0
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.copy")) <= 5_000


def test_a_folder_that_cannot_be_written_to_costs_nothing_but_time(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    copies = KeptCopies(tmp_path / "file", 1_000_000)
    assert copies.get(["key"], lambda: np.arange(3)).sum() == 3
    assert copies.get(["other"], lambda: np.arange(4)).sum() == 6
    assert len(caplog.records) == 1


def test_large_photographs_are_kept_small(tmp_path):
    for subset in ("train", "val", "test"):
        for i in range(3):
            name = f"{subset}/{i}.jpg"
            (tmp_path / "data" / "images" / subset).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((400, 600, 3), 10 * i, np.uint8)).save(tmp_path / "data" / "images" / name)
            write_png(tmp_path / "data" / "masks" / subset / f"{i}.png", np.zeros((400, 600), np.uint8))
    (tmp_path / "data" / "dataset.yaml").write_text("classes: [ground, plant]\n")
    data = data_of(tmp_path / "data", tmp_path / "cache")
    data.images[0]
    assert 0 < sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.copy")) < 10_000


def test_copies_are_for_their_owner_alone(tmp_path):
    copies = KeptCopies(tmp_path / "cache", 1_000_000)
    copies.get(["key"], lambda: np.arange(3))
    (path,) = (tmp_path / "cache").rglob("*.copy")
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_copies_of_another_user_are_used(tmp_path, monkeypatch):
    copies = KeptCopies(tmp_path, 1_000_000)
    copies.get(["key"], lambda: np.arange(3))

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", refuse)
    assert copies.get(["key"], lambda: np.arange(3) + 1)[0] == 0


def test_what_killed_writers_left_is_removed(tmp_path):
    copies = KeptCopies(tmp_path, 1_000)
    (tmp_path / "ab").mkdir()
    for name, age in (("old", 7200), ("new", 0)):
        path = tmp_path / "ab" / f".{name}.copy.abcdefgh.part"
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    copies.get(["key"], lambda: np.arange(3))
    assert [path.name for path in (tmp_path / "ab").glob(".*")] == [".new.copy.abcdefgh.part"]
