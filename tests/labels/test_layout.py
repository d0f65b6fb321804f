"""Layouts that are not grids, against slow and obvious references; and a grid against itself as any layout."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ralseg.acquisition.features import class_histogram
from ralseg.acquisition.measures import MEASURES
from ralseg.acquisition.scanner import Scan, scan
from ralseg.data.samples import Draw
from ralseg.errors import ConfigError
from ralseg.labels import IGNORE, GridLayout, Layout, RevealedLabels
from ralseg.labels.layout import SegmentedRegions
from support.data import small_data
from support.games import segmenter
from support.layouts import Blobs, Hook, Images, TinyNet, Traced

CLOSED_FORM_ONLY = {"credit"}  # tests/models/test_closed_form.py has it
OURS = tuple(
    name
    for name, function in MEASURES.items()
    if function.__module__.startswith("ralseg") and name not in CLOSED_FORM_ONLY
)
layouts = st.sampled_from([Blobs(2), Blobs(7), Blobs(30), Hook()])
sizes = st.integers(8, 23)


class Reference:
    """What is known of regions, from nothing but lists of their pixels."""

    def __init__(self, layout: Layout, images: Images):
        self.height, self.width = images.height, images.width
        self.image, self.number, self.pixels, self.maps = [], [], [], []
        for position in range(len(images)):
            segments = layout.segment(images.pixels(position)).tolist()
            self.maps.append(segments)
            for number in range(max(map(max, segments)) + 1):
                self.image.append(position)
                self.number.append(number)
                self.pixels.append(
                    [(y, x) for y, row in enumerate(segments) for x, found in enumerate(row) if found == number]
                )

    def __len__(self):
        return len(self.image)

    def box(self, region: int, pixels: list[tuple[int, int]] | None = None) -> list[int]:
        rows, columns = zip(*(pixels or self.pixels[region]), strict=True)
        x, y = min(columns), min(rows)
        return [x, y, max(columns) + 1 - x, max(rows) + 1 - y]

    def neighbours(self, region: int) -> list[int]:
        own, found = self.maps[self.image[region]], set()
        for y, x in self.pixels[region]:
            for row, column in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= row < self.height and 0 <= column < self.width:
                    found.add(own[row][column])
        first = self.image.index(self.image[region])
        return sorted(first + number for number in found - {self.number[region]})

    def seen_at(self, region: int, stride: int) -> list[tuple[int, int]]:
        """The region's pixels in a map of every n-th row and column."""
        return [(y // stride, x // stride) for y, x in self.pixels[region] if y % stride == 0 and x % stride == 0]


@given(layouts, sizes, sizes, st.integers(0, 1000))
def test_boxes_images_shapes_and_neighbours(layout, height, width, seed):
    images = Images(height, width, 3, seed=seed)
    regions, reference = layout.over(images), Reference(layout, images)
    everything = torch.arange(len(reference))
    assert len(regions) == len(reference)
    assert regions.image_of(everything).tolist() == reference.image
    assert [regions.of_image(i).tolist() for i in range(3)] == [
        [r for r in range(len(reference)) if reference.image[r] == i] for i in range(3)
    ]
    boxes = [reference.box(region) for region in range(len(reference))]
    assert regions.boxes(everything).tolist() == boxes
    assert regions.boxes(everything[:2, None]).shape == (2, 1, 4)
    assert regions.box_size == (max(box[3] for box in boxes), max(box[2] for box in boxes))
    for region, (x, y, w, h) in enumerate(boxes):
        inside = regions.inside(region)
        assert inside.shape == (h, w)
        assert [(y + row, x + column) for row, column in inside.nonzero().tolist()] == reference.pixels[region]
        assert regions.neighbours(region) == reference.neighbours(region)
        assert dict(zip(regions.place_names, regions.place(region), strict=True)) == {
            "segment": reference.number[region]
        }


@given(layouts, sizes, sizes, st.sampled_from([1, 2]), st.integers(0, 1000), st.data())
def test_cut_shows_a_regions_own_pixels_and_nothing_else(layout, height, width, stride, seed, data):
    images = Images(height, width, 3, seed=seed)
    regions, reference = layout.over(images), Reference(layout, images)
    order = data.draw(st.permutations(range(3)))  # row i of the maps shows image order[i]
    wanted = data.draw(st.lists(st.integers(0, len(reference) - 1), min_size=1, max_size=9))
    maps = (1 + torch.rand(3, 2, height, width))[..., ::stride, ::stride]
    rows = [order.index(reference.image[region]) for region in wanted]
    values, inside = regions.cut(maps, torch.tensor(rows), torch.tensor(wanted))
    assert values.shape == (len(wanted), 2, *(-(-size // stride) for size in regions.box_size))
    assert (values[~inside[:, None].expand_as(values)] == 0).all()
    for cut, belongs, row, region in zip(values, inside, rows, wanted, strict=True):
        pixels = reference.seen_at(region, stride)
        if not pixels:  # it lies between the pixels that are looked at: one next to its middle stands for it
            x, y, w, h = reference.box(region)
            assert belongs.nonzero().tolist() == [[0, 0]]
            near = maps[row, :, max((y + h // 2) // stride - 1, 0) :, max((x + w // 2) // stride - 1, 0) :][..., :3, :3]
            assert (near == cut[:, :1, :1]).all(0).any()
            continue
        x, y, _, _ = reference.box(region, pixels)
        assert [(y + i, x + j) for i, j in belongs.nonzero().tolist()] == pixels
        for i, j in pixels:
            assert torch.equal(cut[:, i - y, j - x], maps[row, :, i, j])


def test_where_regions_lie_is_looked_up_once_at_each_stride(monkeypatch):
    regions = small_data_regions()
    wanted = torch.tensor([3, 0, 3, 5])
    first = [regions.windows(size, wanted) for size in ((32, 48), (16, 24))]
    monkeypatch.setattr("ralseg.labels.layout._box", lambda belongs: pytest.fail("looked again"))
    for size, before in zip(((32, 48), (16, 24)), first, strict=True):
        again = regions.windows(size, wanted)
        assert torch.equal(again.corners, before.corners)
        assert torch.equal(again.inside, before.inside)
        again.inside.zero_()
        again.corners.zero_()
        assert torch.equal(regions.windows(size, wanted).inside, before.inside)
        assert torch.equal(regions.windows(size, wanted).corners, before.corners)


def small_data_regions() -> SegmentedRegions:
    return SegmentedRegions(Blobs(), Images(32, 48))


def test_cut_takes_maps_with_and_without_channels():
    images = Images(12, 18, 2)
    regions = Blobs().over(images)
    everything = torch.arange(len(regions))
    rows = regions.image_of(everything)
    classes, logits = torch.randint(0, 5, (2, 12, 18)), torch.randn(2, 5, 12, 18)
    assert regions.cut(classes, rows, everything).values.shape == (len(regions), *regions.box_size)
    cut = regions.cut(logits, rows, everything)
    assert cut.values.shape == (len(regions), 5, *regions.box_size)
    reference = Reference(Blobs(), images)
    expected = [
        [sum(float(logits[reference.image[r], c, y, x]) for y, x in reference.pixels[r]) / len(reference.pixels[r])
         for c in range(5)]
        for r in range(len(reference))
    ]  # fmt: skip
    assert torch.allclose(cut.mean(cut.values), torch.tensor(expected), atol=1e-5)
    flat = regions.cut(logits[:, 0], rows, everything)
    assert torch.allclose(flat.mean(flat.values), torch.tensor(expected)[:, 0], atol=1e-5)


@given(layouts, sizes, sizes, st.integers(2, 9), st.integers(2, 9), st.integers(0, 1000))
def test_average_counts_a_coarse_pixel_where_its_middle_lies(layout, height, width, rows, columns, seed):
    images = Images(height, width, 2, seed=seed)
    regions, reference = layout.over(images), Reference(layout, images)
    maps = torch.randn(2, 3, rows, columns)
    everything = torch.arange(len(reference))
    found = regions.average(maps, 1 - regions.image_of(everything), everything)  # image 0 stands in row 1
    for region, mean in enumerate(found):
        image = reference.image[region]
        own = [
            (i, j)
            for i in range(rows)
            for j in range(columns)
            if reference.maps[image][int((i + 0.5) * height / rows)][int((j + 0.5) * width / columns)]
            == reference.number[region]
        ]
        if own:
            expected = torch.stack([maps[1 - image, :, i, j] for i, j in own]).mean(0)
            assert torch.allclose(mean, expected, atol=1e-5)
        else:  # smaller than a coarse pixel: the one that its middle lies in
            x, y, w, h = reference.box(region)
            down, right = (y + h // 2) * rows // height, (x + w // 2) * columns // width
            assert torch.allclose(mean, maps[1 - image, :, down, right])


@given(layouts, sizes, sizes, st.integers(1, 4), st.integers(0, 1000))
def test_boxes_in_the_file_are_the_boxes_at_its_scale(layout, height, width, factor, seed):
    images = Images(height, width, 2, file=(factor * height, factor * width), seed=seed)
    regions = layout.over(images)
    for region in range(len(regions)):
        assert regions.file_box(region) == tuple(factor * n for n in regions.boxes(torch.tensor(region)).tolist())


@given(layouts, st.integers(8, 90), st.integers(8, 90))
def test_boxes_in_files_of_any_size_lie_within_them_and_near_their_place(layout, file_height, file_width):
    regions = layout.over(Images(16, 20, 2, file=(file_height, file_width)))
    for region in range(len(regions)):
        x, y, w, h = regions.boxes(torch.tensor(region)).tolist()
        left, top, width, height = regions.file_box(region)
        assert min(width, height) >= 1
        assert min(left, top) >= 0
        assert left + width <= file_width
        assert top + height <= file_height
        assert left == pytest.approx(x * file_width / 20, abs=1)
        assert top == pytest.approx(y * file_height / 16, abs=1)
        assert left + width == pytest.approx((x + w) * file_width / 20, abs=1)
        assert top + height == pytest.approx((y + h) * file_height / 16, abs=1)


class Columns(Layout):
    def __init__(self, widths):
        self.widths = torch.tensor(widths)

    def segment(self, pixels):
        return torch.arange(len(self.widths)).repeat_interleave(self.widths).expand(pixels.shape[1:])


class Gap(Layout):
    def segment(self, pixels):
        segments = torch.zeros(pixels.shape[1:], dtype=torch.int64)
        segments[:2] = 2
        return segments


class Small(Layout):
    def segment(self, pixels):
        return torch.zeros(4, 4, dtype=torch.int64)


class Negative(Layout):
    def segment(self, pixels):
        return torch.full(pixels.shape[1:], -1)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Gap(), r"data\.layout Gap: image 0 is cut into regions \[0, 2\] .*from 0 without gaps"),
        (Small(), r"data\.layout Small: image 0 .* on \(4, 4\) pixels.*whole image"),
        (Negative(), r"data\.layout Negative: image 0 is cut into regions \[-1\]"),
    ],
)
def test_a_cut_with_gaps_or_of_another_size_is_refused(layout, message):
    with pytest.raises(ConfigError, match=message):
        layout.over(Images(8, 12, 2))


def test_an_image_is_cut_once_for_all_sets_of_the_data(monkeypatch):
    cut = []
    monkeypatch.setattr(Hook, "segment", lambda self, pixels: cut.append(0) or Blobs().segment(pixels))
    data = small_data(layout=Hook())
    data.setup()
    train, state = data.splits.train_set, data.splits.state_set
    whole = data.regions([*train, *state])
    part = data.regions([state[1], train[0]])
    assert len(cut) == len(train) + len(state)
    assert len(part.of_image(0)) == len(whole.of_image(len(train) + 1))
    here, there = part.of_image(1), whole.of_image(0)
    assert part.boxes(here).tolist() == whole.boxes(there).tolist()


def test_cuts_are_told_apart():
    images = Images(16, 24, 3)
    one, same, other = Blobs(7).over(images), Blobs(7).over(images), Blobs(30).over(images)
    assert one.description() == same.description() != other.description()
    assert one.description() != Hook().over(images).description()
    cuts = [Columns(widths).over(images).description() for widths in ([6, 12, 6], [5, 14, 5], [12, 6, 6])]
    assert len({str(cut) for cut in cuts}) == 3
    assert json.loads(json.dumps(cuts)) == cuts


def test_a_set_without_images_has_no_regions():
    regions = Blobs().over(Images(8, 8, 0))
    assert len(regions) == 0
    assert regions.boxes(torch.empty(0, dtype=torch.int64)).shape == (0, 4)


# -- labels ------------------------------------------------------------------------------------------


def labelled(layout: Layout):
    data = small_data(layout=layout, flip=False)
    data.setup()
    return data, data.regions("train_set"), data.mask_oracle("train_set")


def test_an_oracle_labels_a_region_and_nothing_around_it():
    data, regions, oracle = labelled(Blobs())
    reference = Reference(Blobs(), regions.images)
    everything = torch.arange(len(regions))
    labels = oracle.label(everything)
    assert labels.shape == (len(regions), *regions.box_size)
    assert labels.dtype == torch.uint8
    sizes = {tuple(box[2:]) for box in regions.boxes(everything).tolist()}
    assert len(sizes) > len(regions.images)  # they differ: some do not fill the largest box
    for region, label in enumerate(labels):
        truth = data.dataset.read_mask(data.splits.train_set[reference.image[region]])
        x, y, _, _ = reference.box(region)
        expected = torch.full(regions.box_size, IGNORE, dtype=torch.uint8)
        for row, column in reference.pixels[region]:
            expected[row - y, column - x] = int(truth[row, column])
        assert torch.equal(label, expected)
    assert oracle.label(everything[:0]).shape == (0, *regions.box_size)
    assert data.masks.revealed == len(regions)


def test_interlocking_regions_do_not_wipe_each_other_out():
    data, regions, oracle = labelled(Hook())
    hook, rest = regions.of_image(2).tolist()
    labels = RevealedLabels(regions)
    labels.add(torch.tensor([hook, rest]), oracle.label(torch.tensor([hook, rest])))
    truth = torch.from_numpy(data.dataset.read_mask(data.splits.train_set[2]))
    segments = Hook().segment(regions.images.pixels(2))
    assert torch.equal(labels.mask([hook, rest]), truth)
    assert torch.equal(labels.mask([rest, hook]), truth)
    for number, region in enumerate((hook, rest)):
        assert torch.equal(labels.mask([region]), torch.where(segments == number, truth, IGNORE))
    assert torch.equal(labels.mask([]), torch.full_like(truth, IGNORE))


def test_samples_of_irregular_regions_show_only_them():
    data, regions, oracle = labelled(Blobs())
    group = regions.of_image(1)[:2]
    labels = RevealedLabels(regions)
    labels.add(group, oracle.label(group))
    batch = data.region_samples([group.tolist()], labels)[Draw(0, 3)]
    truth = torch.from_numpy(data.dataset.read_mask(data.splits.train_set[1]))
    segments = Blobs().segment(regions.images.pixels(1))
    assert torch.equal(batch.mask, torch.where(segments < 2, truth, IGNORE))


# -- what is seen of regions -------------------------------------------------------------------------


def described(network, regions, wanted):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 3, (len(wanted), *regions.box_size), dtype=torch.uint8, generator=generator)
    shares = torch.rand(4, len(network.class_names), generator=generator)
    what = Scan("3H", OURS, seed=5, batch_size=2, labelled=shares / shares.sum(1, keepdim=True), labels=labels)
    return scan(network.eval(), regions, wanted, what)


def both(rows: int, columns: int, height: int, width: int):
    """A grid of cells of 2 height x 2 width pixels, and the same cut as any layout's."""
    images, layout = Images(rows * 2 * height, columns * 2 * width, 3), GridLayout(rows, columns)
    return images, layout.over(images), SegmentedRegions(layout, images)


same_cuts = st.builds(both, *[st.integers(1, 4)] * 4)


@given(same_cuts, st.sampled_from([1, 2]))
def test_a_grid_and_any_layout_of_the_same_cut_agree(cut, stride):
    images, grid, traced = cut
    everything = torch.arange(len(grid))
    assert len(traced) == len(grid)
    assert traced.box_size == grid.box_size
    assert torch.equal(traced.boxes(everything), grid.boxes(everything))
    assert torch.equal(traced.image_of(everything), grid.image_of(everything))
    for position in range(3):
        assert torch.equal(traced.of_image(position), grid.of_image(position))
    maps = torch.randn(3, 2, images.height, images.width)[..., ::stride, ::stride]
    one, other = (regions.cut(maps, grid.image_of(everything), everything) for regions in (grid, traced))
    assert torch.equal(one.values, other.values)
    assert other.inside.all()
    for region in everything.tolist():
        assert traced.inside(region).all()
        assert grid.inside(region) is None
        assert traced.neighbours(region) == grid.neighbours(region)


@pytest.mark.slow
@settings(max_examples=12)
@given(same_cuts, st.sampled_from([1, 2]), st.integers(0, 1000), st.booleans())
def test_a_grid_and_any_layout_of_the_same_cut_agree_on_every_measure(cut, stride, seed, some):
    _, grid, traced = cut
    generator = torch.Generator().manual_seed(seed)
    wanted = torch.randperm(len(grid), generator=generator)
    wanted = wanted[: max(1, len(grid) // 2)] if some else wanted
    network = TinyNet(label_stride=stride)
    agree(described(network, grid, wanted), described(network, traced, wanted))


def agree(one, other):
    assert torch.allclose(one.vector(), other.vector(), atol=1e-5)
    assert torch.allclose(one.moments, other.moments, atol=1e-5)
    assert one.measures.keys() == other.measures.keys() == set(OURS)
    for name in OURS:
        assert torch.allclose(one.measures[name], other.measures[name], atol=1e-5), name


def test_a_grid_and_any_layout_agree_on_the_embedding_of_a_feature_pyramid():
    found = []
    for layout in (GridLayout(2, 3), Traced(GridLayout(2, 3))):
        data = small_data(layout=layout)
        data.setup()
        found.append(described(segmenter(), data.regions("train_set"), torch.tensor([17, 0, 3, 4, 8])))
    agree(*found)


@pytest.mark.parametrize("stride", [1, 2])
def test_features_of_irregular_regions_count_their_own_pixels_only(stride):
    images = Images(24, 32, 3)
    regions, reference = Blobs(5).over(images), Reference(Blobs(5), images)
    network = TinyNet(label_stride=stride).eval()
    wanted = torch.arange(len(regions)).flip(0)
    found = described(network, regions, wanted)
    for place, region in enumerate(wanted.tolist()):
        with torch.no_grad():
            logits = network(images.pixels(reference.image[region])[None])[0, :, ::stride, ::stride]
        pixels = reference.seen_at(region, stride)
        if not pixels:  # too thin for the stride
            continue
        own = torch.stack([logits[:, y, x] for y, x in pixels]).softmax(1)  # [pixels, C]
        entropy = torch.special.entr(own).sum(1) / torch.tensor(3.0).log()
        moments = torch.stack([entropy.mean(), entropy.max(), entropy.std(correction=0)]).tolist()
        assert found.moments[place].tolist() == pytest.approx(moments, abs=1e-4)
        expected = class_histogram(own.argmax(1)[None, None], 3)[0]
        assert torch.allclose(found.histogram[place], expected, atol=1e-5)
        two = own.topk(2, 1).values
        assert float(found.measures["margin"][place]) == pytest.approx(float((two[:, 0] - two[:, 1]).mean()), abs=1e-4)
        assert float(found.measures["confidence"][place]) == pytest.approx(float(two[:, 0].mean()), abs=1e-4)
        assert torch.allclose(found.measures["probability"][place], own.mean(0), atol=1e-4)
        by_class = [float(entropy[own.argmax(1) == c].sum()) / len(pixels) for c in range(3)]
        assert found.measures["class_entropy"][place].tolist() == pytest.approx(by_class, abs=1e-4)
        lowest, mean, highest = found.pooled[place].reshape(3, 64).unbind(0)
        assert float(highest.max()) <= float(entropy.max()) + 1e-4
        assert float(lowest.min()) >= float(entropy.min()) - 1e-4
        assert float(mean.min()) >= float(entropy.min()) - 1e-4
