import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ralseg.errors import ConfigError
from ralseg.labels import GridLayout, GridRegions
from ralseg.labels.grid import nearest_divisors
from support.layouts import Images


def cells_of(regions: GridRegions) -> torch.Tensor:
    return regions.of_image(0)


grids = st.builds(
    lambda rows, columns, h, w: GridLayout(rows, columns).over(Images(rows * h, columns * w, 3)),
    *[st.integers(1, 7)] * 4,
)


@given(grids)
def test_cells_tile_the_image_exactly(grid):
    covered = torch.zeros(grid.images.height, grid.images.width, dtype=torch.int64)
    for x, y, w, h in grid.boxes(cells_of(grid)).tolist():
        covered[y : y + h, x : x + w] += 1
    assert (covered == 1).all()


@given(grids, st.integers(1, 3), st.integers(1, 3))
def test_split_gives_each_cell_the_pixels_of_its_box(grid, batch, channels):
    height, width = grid.images.height, grid.images.width
    maps = torch.arange(batch * channels * height * width).reshape(batch, channels, height, width)
    cells = grid.split(maps).flatten(1, 2)
    assert cells.shape == (batch, len(cells_of(grid)), channels, *grid.box_size)
    for cell, (x, y, w, h) in enumerate(grid.boxes(cells_of(grid)).tolist()):
        assert torch.equal(cells[:, cell], maps[:, :, y : y + h, x : x + w])


@given(grids, st.data())
def test_cut_takes_each_region_from_its_own_row(grid, data):
    maps = torch.randn(3, 2, grid.images.height, grid.images.width)
    order = data.draw(st.permutations(range(3)))  # row i of the maps shows image order[i]
    regions = torch.tensor(data.draw(st.lists(st.integers(0, len(grid) - 1), min_size=1, max_size=8)))
    rows = torch.tensor([order.index(image) for image in grid.image_of(regions).tolist()])
    values, inside = grid.cut(maps, rows, regions)
    assert inside is None
    for cut, row, (x, y, w, h) in zip(values, rows.tolist(), grid.boxes(regions).tolist(), strict=True):
        assert torch.equal(cut, maps[row, :, y : y + h, x : x + w])


def test_camvid_regions_are_80_by_90_pixels():
    grid = GridLayout(4, 6).over(Images(360, 480, 9))
    assert (len(grid), grid.box_size) == (9 * 24, (90, 80))
    region = torch.tensor(5 * 24 + 7)  # image 5, second row, second column
    assert int(grid.image_of(region)) == 5
    assert grid.place(int(region)) == (1, 1)
    assert grid.boxes(region).tolist() == [80, 90, 80, 90]
    assert grid.of_image(5).tolist() == list(range(120, 144))


def test_full_image_is_the_one_by_one_grid():
    grid = GridLayout(1, 1).over(Images(37, 53, 4))
    assert grid.boxes(torch.tensor([3])).tolist() == [[0, 0, 53, 37]]
    assert grid.neighbours(3) == []


@given(st.integers(1, 6), st.integers(1, 6), st.integers(6, 50), st.integers(6, 50))
def test_boxes_in_files_that_do_not_divide_evenly_still_tile_them(rows, columns, height, width):
    grid = GridLayout(rows, columns).over(Images(4 * rows, 4 * columns, 2, file=(height, width)))
    covered = torch.zeros(height, width, dtype=torch.int64)
    for region in grid.of_image(1).tolist():
        x, y, w, h = grid.file_box(region)
        covered[y : y + h, x : x + w] += 1
    assert (covered == 1).all()


def test_neighbours_share_an_edge_and_the_image():
    grid = GridLayout(3, 3).over(Images(9, 9, 2))
    assert grid.neighbours(9 + 4) == [10, 12, 14, 16]
    assert grid.neighbours(9) == [10, 12]
    assert grid.neighbours(8) == [5, 7]


def test_means_over_cells_of_coarse_maps():
    grid = GridLayout(2, 3).over(Images(64, 96, 2))
    maps = torch.randn(2, 5, 16, 24)
    found = grid.average(maps, torch.tensor([1, 0]), torch.tensor([7, 5]))
    assert torch.allclose(found[0], maps[1, :, :8, 8:16].mean((1, 2)), atol=1e-6)
    assert torch.allclose(found[1], maps[0, :, 8:, 16:].mean((1, 2)), atol=1e-6)


def test_half_size_maps_are_cut_like_full_ones():
    grid = GridLayout(2, 3).over(Images(64, 96))
    full = torch.rand(1, 64, 96)
    half = full[:, ::2, ::2]
    assert torch.equal(grid.split(half), grid.split(full)[..., ::2, ::2])


def test_maps_that_cells_do_not_divide_are_refused():
    grid = GridLayout(2, 3).over(Images(6, 6))
    with pytest.raises(ConfigError, match=r"maps of 3x3 pixels cannot be cut into 2x3 .*model\.label_stride"):
        grid.cut(torch.zeros(1, 3, 3), torch.tensor([0]), torch.tensor([0]))


def test_a_grid_that_does_not_divide_the_image_names_the_nearest_that_do():
    with pytest.raises(ConfigError, match=r"data\.layout rows=7 does not divide the image height 360.*6 or 8"):
        GridLayout(7, 6).check(360, 480)
    with pytest.raises(ConfigError, match=r"data\.layout columns=0"):
        GridLayout(1, 0).check(360, 480)


@pytest.mark.parametrize("rows", [0, -1, 65])
def test_counts_that_no_image_has_room_for_are_refused_before_anything_is_cut(rows):
    with pytest.raises(ConfigError, match=rf"data\.layout rows={rows} must lie between 1 and the image height, 64"):
        GridLayout(rows, 2).over(Images(64, 96))


def test_nearest_divisors():
    assert nearest_divisors(360, 7) == [6, 8]
    assert nearest_divisors(7, 100) == [7]
