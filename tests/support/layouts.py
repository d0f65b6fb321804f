"""Sets of images without a data set, and layouts that are not grids."""

import torch
from torch import Tensor, nn

from ralseg.labels import Layout
from ralseg.models import Segmenter


class Images:
    """Random images, as layouts see them."""

    def __init__(self, height: int, width: int, number: int = 1, file: tuple[int, int] | None = None, seed: int = 0):
        self.height, self.width = height, width
        self.indices = [10 + 3 * i for i in range(number)]  # as if of a larger data set
        generator = torch.Generator().manual_seed(seed)
        self._pixels = torch.randint(0, 256, (number, 3, height, width), dtype=torch.uint8, generator=generator)
        self._file = file or (height, width)

    @property
    def cuts(self) -> dict:
        return {}  # several layouts cut the same images: nothing is kept

    def __len__(self) -> int:
        return len(self.indices)

    def pixels(self, position: int) -> Tensor:
        return self._pixels[position]

    def content(self, position: int) -> tuple[int, int]:
        return self.height, self.width

    def file_size(self, position: int) -> tuple[int, int]:
        return self._file


class Blobs(Layout):
    """Regions of any shape and number, other ones in each image: each pixel goes to the nearest of random centres."""

    def __init__(self, most: int = 7):
        self.most = most

    def segment(self, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[1:]
        generator = torch.Generator().manual_seed(int(pixels.long().sum()))
        count = int(torch.randint(2, self.most + 1, (), generator=generator))
        centres = torch.rand(count, 2, generator=generator) * torch.tensor([height, width])
        stretch = 0.3 + 2 * torch.rand(count, 2, generator=generator)
        places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        distance = ((places[:, :, None] - centres) * stretch).square().sum(-1)
        return distance.argmin(-1).unique(return_inverse=True)[1]


class Hook(Layout):
    """An L along the left and the lower edge, and the rest, whose boxes overlap."""

    def segment(self, pixels: Tensor) -> Tensor:
        segments = torch.ones(pixels.shape[1:], dtype=torch.int64)
        segments[:, : pixels.shape[2] // 4] = 0
        segments[-pixels.shape[1] // 4 :] = 0
        return segments


class Traced(Layout):
    """Another layout's cut, of which only ``segment`` is known."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def segment(self, pixels: Tensor) -> Tensor:
        return self.layout.segment(pixels)


class TinyNet(Segmenter):
    """A network of one's own, with a dropout layer and nothing that ralseg knows of."""

    def __init__(self, class_names: tuple[str, ...] = ("a", "b", "c"), dropout: float = 0.3, **options):
        super().__init__(class_names, **options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.net = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(dropout), nn.Conv2d(8, len(class_names), 1)
            )

    def forward(self, image: Tensor) -> Tensor:
        return 4 * self.net(image / 255)
