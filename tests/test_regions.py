import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ralseg.errors import ConfigError
from ralseg.regions import GridShape, RegionGrid, nearest_divisors

grids = st.builds(
    lambda rows, columns, h, w: RegionGrid(rows, columns, rows * h, columns * w),
    *[st.integers(1, 7)] * 4,
)


@given(grids)
def test_cells_tile_the_image_exactly(grid):
    covered = torch.zeros(grid.height, grid.width, dtype=torch.int64)
    for x, y, w, h in grid.boxes(torch.arange(grid.cells)).tolist():
        covered[y : y + h, x : x + w] += 1
    assert (covered == 1).all()


@given(grids, st.integers(1, 3), st.integers(1, 3))
def test_split_gives_each_cell_the_pixels_of_its_box(grid, batch, channels):
    maps = torch.arange(batch * channels * grid.height * grid.width).reshape(batch, channels, grid.height, grid.width)
    cells = grid.split(maps)
    assert cells.shape == (batch, grid.cells, channels, grid.cell_height, grid.cell_width)
    for cell, (x, y, w, h) in enumerate(grid.boxes(torch.arange(grid.cells)).tolist()):
        assert torch.equal(cells[:, cell], maps[:, :, y : y + h, x : x + w])


def test_camvid_regions_are_80_by_90_pixels():
    grid = GridShape(4, 6).on(360, 480)
    assert (grid.cells, grid.cell_width, grid.cell_height) == (24, 80, 90)
    region = torch.tensor(5 * 24 + 7)  # image 5, second row, second column
    assert int(grid.image_of(region)) == 5
    assert grid.boxes(region).tolist() == [80, 90, 80, 90]


def test_full_image_is_the_one_by_one_grid():
    grid = GridShape(1, 1).on(37, 53)
    assert grid.boxes(torch.tensor([3])).tolist() == [[0, 0, 53, 37]]


def test_a_grid_that_does_not_divide_the_image_names_the_nearest_that_do():
    with pytest.raises(ConfigError, match=r"data\.grid\.rows=7 does not divide the image height 360.*6 or 8"):
        GridShape(7, 6).on(360, 480)
    with pytest.raises(ConfigError, match=r"data\.grid\.columns=0"):
        GridShape(1, 0).on(360, 480)


def test_nearest_divisors():
    assert nearest_divisors(360, 7) == [6, 8]
    assert nearest_divisors(7, 100) == [7]
