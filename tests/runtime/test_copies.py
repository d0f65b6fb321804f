"""Copies that outlive a run: used when nothing has changed, never when something has."""

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg.cache_command import clear
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.labels import GridLayout
from ralseg.runtime.copies import KeptCopies, Mapped
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


@pytest.mark.parametrize("mapped", [False, True])
def test_a_copy_of_something_else_is_made_anew(mapped, tmp_path):
    copies = KeptCopies(tmp_path, 1_000_000)
    copies.get(["mine"], lambda: np.arange(100))
    (path,) = tmp_path.rglob("*.copy")
    content = path.read_bytes()
    path.unlink()
    copies.get(["another's"], lambda: np.arange(100) + 7)
    (other,) = tmp_path.rglob("*.copy")
    other.write_bytes(content)
    assert copies.get(["another's"], lambda: np.arange(100) + 7, mapped)[0] == 7


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_mapped_arrays_are_the_same_and_their_files_stay_as_they_are(dtype, tmp_path):
    copies = KeptCopies(tmp_path, 1_000_000)
    made = (np.arange(60) % 7).astype(dtype).reshape(3, 4, 5)
    first = copies.get(["features"], lambda: made, mapped=True)
    again = copies.get(["features"], lambda: 1 / 0, mapped=True)
    assert isinstance(first, Mapped)
    assert isinstance(again, Mapped)
    assert np.array_equal(first, made)
    assert again.ctypes.data % 64 == 0
    torch.from_numpy(again)[:] = 9
    assert np.array_equal(first, made)
    assert np.array_equal(copies.get(["features"], lambda: 1 / 0), made)


def test_what_is_evicted_stays_readable_where_it_is_mapped(tmp_path):
    copies = KeptCopies(tmp_path, 1_000_000)
    mapped = copies.get(["features"], lambda: np.arange(5_000), mapped=True)
    clear(tmp_path)
    assert not list(tmp_path.rglob("*.copy"))
    assert mapped.sum() == np.arange(5_000).sum()


def test_mapped_files_are_not_held_open(tmp_path):
    copies, opened = KeptCopies(tmp_path, 1_000_000), len(os.listdir("/proc/self/fd"))
    mapped = [copies.get([number], lambda: np.arange(10), mapped=True) for number in range(30)]
    assert all(isinstance(array, Mapped) for array in mapped)
    assert len(os.listdir("/proc/self/fd")) == opened


def make_slowly(folder: Path, log: Path, number: int) -> None:
    """Ask for some copies, as one of several processes."""
    copies = KeptCopies(folder, 10_000_000)

    def make(key):
        with log.open("a") as file:
            file.write(f"{key}\n")
        time.sleep(0.03)
        return np.full(10, key)

    for key in range(number):
        assert copies.get(["slow", key], lambda key=key: make(key))[0] == key


def test_of_several_processes_one_makes_a_copy(tmp_path):
    log = tmp_path / "made.txt"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=make_slowly, args=(tmp_path / "cache", log, 12)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(map(int, log.read_text().split())) == list(range(12))
    assert not list((tmp_path / "cache").rglob("*.lock"))


def die_while_making(folder: Path) -> None:
    KeptCopies(folder, 1_000_000).get(["key"], lambda: os._exit(9))


def test_a_process_that_died_while_making_a_copy_is_no_obstacle(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=die_while_making, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert list(tmp_path.rglob("*.lock"))
    assert KeptCopies(tmp_path, 1_000_000).get(["key"], lambda: np.arange(3)).sum() == 3
    assert not list(tmp_path.rglob("*.lock"))


def test_an_error_while_making_a_copy_lets_go_of_it(tmp_path):
    copies = KeptCopies(tmp_path, 1_000_000)
    with pytest.raises(ZeroDivisionError):
        copies.get(["key"], lambda: 1 / 0)
    assert copies.get(["key"], lambda: np.arange(3)).sum() == 3


def test_pickles_in_copies_are_not_read(tmp_path):
    import io
    import zlib

    copies = KeptCopies(tmp_path, 1_000_000)
    copies.get(["key"], lambda: np.arange(3))
    (path,) = tmp_path.rglob("*.copy")
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    header = path.read_bytes()[:64]
    content = header[12:] + buffer.getvalue()
    path.write_bytes(header[:8] + zlib.crc32(content).to_bytes(4) + content)
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


def grow_old(folder: Path, seconds: float) -> None:
    """All copies were used so long ago."""
    for path in folder.rglob("*.copy"):
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("order", [range(20), [*range(10, 20), *range(10)]], ids=["same", "other"])
def test_a_run_that_needs_more_than_there_is_room_for_keeps_what_fits(tmp_path, caplog, order):
    """Were those deleted that it has not asked for yet, each run would make all of them again."""
    made = []
    for value, numbers in enumerate((range(20), order)):
        copies = KeptCopies(tmp_path, 5_000)
        arrays = [copies.get([number], lambda value=value: np.full(1_000, value, np.uint8)) for number in numbers]
        made.append(sum(int(array[0] == value) for array in arrays))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.copy")) <= 5_000
        grow_old(tmp_path, 7200)
    assert made == [20, 16]
    assert len(caplog.records) == 2  # each says so once
    assert "raise data.copies_gb" in caplog.text


def test_what_was_used_days_ago_makes_room(tmp_path, caplog):
    for number in range(4):
        KeptCopies(tmp_path, 5_000).get([number], lambda: np.zeros(1_000, np.uint8))
    grow_old(tmp_path, 2 * 86_400)
    copies = KeptCopies(tmp_path, 5_000)
    copies.get([0], lambda: pytest.fail("made again"))
    for number in range(10, 13):
        copies.get([number], lambda: np.ones(1_000, np.uint8))
    left = [KeptCopies(tmp_path, 5_000).get([number], lambda: np.full(1, 7)) for number in (0, 10, 11, 12)]
    assert [int(array[0]) for array in left] == [0, 1, 1, 1]
    assert not caplog.records


def test_what_is_larger_than_the_store_takes_nobodys_place(tmp_path):
    copies = KeptCopies(tmp_path, 5_000)
    copies.get(["small"], lambda: np.zeros(1_000, np.uint8))
    grow_old(tmp_path, 2 * 86_400)
    KeptCopies(tmp_path, 5_000).get(["large"], lambda: np.zeros(6_000, np.uint8))
    assert len([*tmp_path.rglob("*.copy")]) == 1
    KeptCopies(tmp_path, 5_000).get(["small"], lambda: pytest.fail("made again"))


def test_copies_of_another_user_that_may_not_be_deleted_stay(tmp_path, monkeypatch, capsys, caplog):
    KeptCopies(tmp_path, 1_500).get(["theirs"], lambda: np.zeros(900, np.uint8))
    (path,) = tmp_path.rglob("*.copy")
    os.utime(path, (1, 1))
    unlink = Path.unlink

    def refuse(found, missing_ok=False):
        if found == path:
            raise PermissionError(found)
        unlink(found, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    KeptCopies(tmp_path, 1_500).get(["mine"], lambda: np.zeros(900, np.uint8))
    assert [*tmp_path.rglob("*.copy")] == [path]
    assert "or may not be deleted" in caplog.text
    clear(tmp_path)
    assert "0 copies deleted, 0.0 MB; 1 may not be deleted" in capsys.readouterr().out


def test_copies_that_a_run_reads_stay_though_their_times_cannot_be_set(tmp_path, monkeypatch):
    KeptCopies(tmp_path, 2_000).get(["theirs"], lambda: np.zeros(900, np.uint8))
    grow_old(tmp_path, 2 * 86_400)

    def refuse(*asked):
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    copies = KeptCopies(tmp_path, 2_000)
    copies.get(["theirs"], lambda: pytest.fail("made again"))
    copies.get(["mine"], lambda: np.zeros(900, np.uint8))
    copies.get(["theirs"], lambda: pytest.fail("made again"))


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
