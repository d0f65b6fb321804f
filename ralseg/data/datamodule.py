"""The LightningDataModule: one data set, cut into the five sets of the game."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from jsonargparse.typing import lazy_instance
from torch import Tensor
from torch.utils.data import DataLoader

from ralseg.data.base import SegmentationDataset
from ralseg.data.canvas import Canvas, Size
from ralseg.data.class_stats import choose_representative, class_counts
from ralseg.data.framed import FramedImages
from ralseg.data.samples import (
    Augmentation,
    Batch,
    Draws,
    ImageSamples,
    RegionSamples,
    Samples,
    SeededSampler,
    SharedBatches,
    UnlabelledSamples,
)
from ralseg.data.splits import Splits, SplitSizes, draw_splits, load_splits, save_splits
from ralseg.data.synthetic import SyntheticStreets
from ralseg.errors import ConfigError, DataError
from ralseg.labels.grid import GridLayout
from ralseg.labels.layout import Layout, Regions
from ralseg.labels.oracle import LabellingJob, MaskOracle, RevealedLabels
from ralseg.labels.vault import MaskVault
from ralseg.runtime import distributed
from ralseg.runtime.copies import KeptCopies
from ralseg.runtime.copies import cache_folder as default_cache_folder
from ralseg.runtime.seeding import stream
from ralseg.runtime.tensor_cache import TensorCache

log = logging.getLogger(__name__)
_Images = tuple[int, ...]  # positions in the data set
_DEFAULT_DATASET = lazy_instance(SyntheticStreets)
_DEFAULT_SIZES = SplitSizes()
_DEFAULT_LAYOUT = lazy_instance(GridLayout)


class SetImages:
    """Some images of the data set, as layouts see them.

    Args:
        data: The data, set up.
        indices: The images.
    """

    def __init__(self, data: "SegmentationData", indices: list[int]) -> None:
        self._data, self.indices, self.cuts = data, indices, data.cuts
        self.height, self.width = data.height, data.width

    def __len__(self) -> int:
        """Number of images."""
        return len(self.indices)

    def pixels(self, position: int) -> Tensor:
        """An image in the size that the run works at: [3, height, width]."""
        return self._data.images[self.indices[position]]

    def content(self, position: int) -> Size:
        """(height, width) of what the image fills of that."""
        return self._data.content(self.indices[position])

    def file_size(self, position: int) -> Size:
        """(height, width) of the image's file."""
        return self._data.file_size(self.indices[position])


class SegmentationData(pl.LightningDataModule):
    """A data set in the splits of the game, decoded once a run.

    Args:
        dataset: Any ``SegmentationDataset`` by its ``class_path``.
        splits: Sizes of the five sets, or a JSON file of image names (looked for in the data set's
            folder too), such as the one a run writes.
        size: (height, width) that a run works at; images of any size are scaled to it. None keeps the files' size,
            where sizes differ that of the largest.
        resize: ``pad`` keeps an image's proportions, and fills up what it leaves free; ``stretch`` does not.
        layout: How an image is cut into regions: a grid, or any ``Layout`` by its ``class_path``.
        fit_on: The sets whose labels ``pretrain`` may use.
        reward_images: Score on a fixed subset of so many images of the reward set, chosen so that its
            classes are distributed like the whole set's. None: all of them (paper). Where the game's ``reward_on``
            is ``other_scenes``: at most so many images of the scene that pays, drawn with the run's seed.
        fit_images: Use only so many images of ``fit_on``, drawn with the run's seed. None: all.
        batch_size: Samples in a training batch, of all devices together (paper: 32 on CamVid, 16 on Cityscapes).
        eval_batch_size: Images in a batch without gradients, on each device.
        crop: (height, width) of training crops (paper: 224x224 on CamVid); None trains on whole images.
        flip: Mirror half of the training samples.
        cache_gb: How many GB of decoded images and masks are kept in RAM; the rest goes to disk.
        cache_folder: Folder for the rest, and for copies. By default the rest goes to the system's temporary folder,
            copies to ``RALSEG_CACHE`` or else the user's cache folder.
        copies_gb: How many GB of images that were decoded and scaled are kept on disk between runs; 0: none.
        num_workers: Processes that prepare samples. Once all is cached, 0 is usually fastest.
        seed: Seed of data order, augmentation and ``fit_images``. The command line links it to
            ``seed_everything``.

    Examples:
        >>> data = SegmentationData(splits=SplitSizes(state=2, train=4), layout=GridLayout(2, 3))
        >>> data.setup()
        >>> len(data.regions("train_set"))  # 4 images of 2 x 3 regions
        24
    """

    def __init__(
        self,
        dataset: SegmentationDataset = _DEFAULT_DATASET,
        splits: SplitSizes | str = _DEFAULT_SIZES,
        size: tuple[int, int] | None = None,
        resize: Literal["pad", "stretch"] = "pad",
        layout: Layout = _DEFAULT_LAYOUT,
        fit_on: list[str] = ["train_set"],  # noqa: B006 - jsonargparse shows it as the default; never written to
        reward_images: int | None = None,
        fit_images: int | None = None,
        batch_size: int = 16,
        eval_batch_size: int = 16,
        crop: tuple[int, int] | None = None,
        flip: bool = True,
        cache_gb: float = 4.0,
        cache_folder: str | None = None,
        copies_gb: float = 10.0,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for key, value in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if value < 1:
                raise ConfigError(f"data.{key}={value} must be at least 1")
        for key, gb in (("cache_gb", cache_gb), ("copies_gb", copies_gb)):
            if not 0 <= gb < math.inf:
                raise ConfigError(f"data.{key}={gb} must be a number of GB, 0 or more")
        if size is not None and min(size) < 1:
            raise ConfigError(f"data.size={list(size)} must be [height, width] in pixels, 1 or more")
        # the defaults stand for classes, so that the command line can show them; a library's caller gets objects
        self.dataset = SyntheticStreets() if dataset is _DEFAULT_DATASET else dataset
        self.class_names = self.dataset.class_names
        self._split_config = splits
        self.canvas = Canvas(size, resize)
        self.layout = GridLayout() if layout is _DEFAULT_LAYOUT else layout
        self.fit_on = list(fit_on)
        self.reward_images, self.fit_images = reward_images, fit_images
        self._shown: DataLoader[Batch] | None = None
        self._scored: _Images | None = None  # what is scored on now; None: the reward set
        self._scored_loader: DataLoader[Batch] | None = None  # of those images
        self._regions: dict[_Images, Regions] = {}
        self._oracles: dict[_Images, MaskOracle] = {}
        self.cuts: dict[int, Any] = {}
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.augmentation = Augmentation(crop, flip)
        self._cache_bytes = int(cache_gb * 1e9)
        self._cache_folder = Path(cache_folder) if cache_folder else None
        self.dataset.copies = KeptCopies(self._cache_folder or default_cache_folder(), int(copies_gb * 1e9))
        self.num_workers = num_workers
        self.seed = seed
        self._is_set_up = False

    def __getstate__(self) -> dict[str, Any]:
        """For other processes: the data as they were configured, not set up."""
        made = ("splits", "height", "width", "framed", "images", "masks", "_reward_loader")
        state = {name: value for name, value in self.__dict__.items() if name not in made}
        kept = {"trainer": None, "_shown": None, "_scored": None, "_scored_loader": None, "_is_set_up": False}
        return state | kept | {"_regions": {}, "_oracles": {}, "cuts": {}}

    @staticmethod
    def of(module: pl.LightningModule) -> "SegmentationData":
        """The data that a module's Trainer was given."""
        trainer: Any = module.trainer  # Lightning sets its datamodule where a type checker does not see it
        data: SegmentationData = trainer.datamodule
        return data

    # -- what setup makes ------------------------------------------------------------------------

    splits: Splits
    height: int
    width: int
    framed: FramedImages
    images: TensorCache  # [3, H, W] uint8 each
    masks: MaskVault

    def setup(self, stage: str | None = None) -> None:
        """Draw or load the splits, and make room for the images. Runs once, whatever the stage."""
        if self._is_set_up:
            return
        self.splits = self._make_splits()
        self.framed = FramedImages(self.dataset, self.canvas)
        self.height, self.width = self.framed.size
        self.images = self._cache(self.framed.image, (3, self.height, self.width))
        self.masks = MaskVault(self._cache(self.framed.mask, (self.height, self.width)), self.dataset.names)
        if self.framed.is_uniform:
            self.layout.check(self.height, self.width)
        elif self.canvas.size is None:
            self.canvas = replace(self.canvas, room=self.framed.size)
        self._check_crop()
        self.masks.open(self.labelled_images("state_set") + self.labelled_images("reward_set"))
        if self.trainer is not None and self.trainer.is_global_zero and not getattr(self.trainer, "fast_dev_run", 0):
            self._write_splits(Path(self.trainer.default_root_dir) / "splits.json")
        self._is_set_up = True

    def file_size(self, index: int) -> Size:
        """(height, width) of an image's file."""
        return self.framed.file_sizes[index]

    def content(self, index: int) -> Size:
        """(height, width) of what an image fills of the size that the run works at, from the top left."""
        return self.framed.contents[index]

    def unpadded(self, index: int) -> Tensor:
        """An image without its padding: [3, h, w]."""
        height, width = self.content(index)
        return self.images[index][:, :height, :width]

    def _make_splits(self) -> Splits:
        if isinstance(self._split_config, SplitSizes):
            return draw_splits(self.dataset, self._split_config)
        path = Path(self._split_config).expanduser()
        if not path.is_file() and self.dataset.root is not None:
            path = self.dataset.root / path
        return load_splits(path, self.dataset)

    def _write_splits(self, path: Path) -> None:
        if path.is_file():
            if load_splits(path, self.dataset) != self.splits:
                raise DataError(
                    f"{path}: holds other splits than this run's; resume with the configuration that "
                    "the folder was made with, or choose another trainer.default_root_dir"
                )
            return
        save_splits(path, self.splits, self.dataset)

    def _check_crop(self) -> None:
        if self.augmentation.crop is None:
            return
        height, width = self.augmentation.crop
        if height > self.height or width > self.width:
            raise ConfigError(f"data.crop={height}x{width} is larger than the images, {self.height}x{self.width}")
        self.check_crop_holds(self.regions("train_set"))

    def check_crop_holds(self, regions: Regions) -> None:
        """A crop must be able to contain any region."""
        if self.augmentation.crop is None:
            return
        (height, width), (box_height, box_width) = self.augmentation.crop, regions.box_size
        if height < box_height or width < box_width:
            raise ConfigError(f"data.crop={height}x{width} is smaller than a region, {box_height}x{box_width}")

    def _cache(self, make: Callable[[int], Tensor], shape: tuple[int, ...]) -> TensorCache:
        share = torch.Size(shape).numel() / (4 * self.height * self.width)  # of image + mask
        ram_bytes = int(self._cache_bytes * share)
        return TensorCache(make, len(self.dataset), shape, torch.uint8, ram_bytes, self._cache_folder)

    def image_key(self, index: int) -> list[Any] | None:
        """Plain values that an image's pixels in the run's size follow from; None where they are not known."""
        return self.framed.key(index)

    # -- sets ------------------------------------------------------------------------------------

    def labelled_images(self, *names: str) -> list[int]:
        """The images of sets that must have masks; a missing mask is an error that names it."""
        indices = [index for name in names for index in self.splits[name]]
        missing = [self.dataset.names[i] for i in indices if not self.dataset.has_mask(i)]
        if missing:
            raise DataError(f"{len(missing)} images of {' + '.join(names)} have no mask, the first: {missing[0]}")
        return indices

    def fit_indices(self) -> list[int]:
        """The images that ``pretrain`` trains on: ``fit_on``, or ``fit_images`` of them drawn by the seed."""
        indices = self.labelled_images(*self.fit_on)
        if not indices:
            raise ConfigError(f"data.fit_on={self.fit_on} has no images; check data.splits")
        if self.fit_images is None:
            return indices
        if not 1 <= self.fit_images <= len(indices):
            raise ConfigError(f"data.fit_images={self.fit_images}, but data.fit_on has {len(indices)} images")
        generator = stream(self.seed, "fit images")
        chosen = torch.randperm(len(indices), generator=generator)[: self.fit_images]
        return sorted(indices[i] for i in chosen.tolist())

    def fit_names(self) -> list[str]:
        """The names of those images."""
        return [self.dataset.names[index] for index in self.fit_indices()]

    def fit_class_frequencies(self) -> Tensor:
        """Share of each class among the labelled pixels that ``pretrain`` trains on: [classes]."""
        indices = self.fit_indices()
        self.masks.open(indices)
        counts = sum(torch.bincount(self.masks[i].flatten().int(), minlength=256) for i in indices)
        assert isinstance(counts, Tensor)
        counts = counts[: len(self.class_names)].double()
        return counts / counts.sum().clamp(min=1)

    def _images_of(self, images: str | Sequence[int]) -> _Images:
        """The images of a set by its name; images themselves stay what they are."""
        return tuple(self.splits[images] if isinstance(images, str) else images)

    def regions(self, images: str | Sequence[int]) -> Regions:
        """The regions of a set, or of any images: how they are cut. Made once, numbered in the images' order.

        Args:
            images: Name of a set, or positions in the data set.
        """
        key = self._images_of(images)
        if key not in self._regions:
            self._regions[key] = self.layout.over(SetImages(self, list(key)))
        return self._regions[key]

    def labelling_job(self, images: str | Sequence[int], folder: Path | None = None) -> LabellingJob:
        """What an oracle must know to label the regions of a set, or of any images."""
        indices = self._images_of(images)
        return LabellingJob(
            self.regions(indices),
            [self.dataset.names[index] for index in indices],
            self.class_names,
            lambda position: self.dataset.read_image(indices[position]),
            self.masks,
            lambda position: self.dataset.has_mask(indices[position]),
            folder,
            tuple(self.dataset.colours),
            self.dataset.palette,
        )

    def mask_oracle(self, images: str | Sequence[int]) -> MaskOracle:
        """An oracle that reveals the masks of a set, or of any images. Made once."""
        key = self._images_of(images)
        if key not in self._oracles:
            oracle = MaskOracle()
            oracle.open(self.labelling_job(key))
            self._oracles[key] = oracle
        return self._oracles[key]

    # -- samples ---------------------------------------------------------------------------------

    def region_samples(self, groups: list[list[int]], labels: RevealedLabels) -> Samples:
        """One sample for each group of labelled regions of one image."""
        self.check_crop_holds(labels.regions)
        return RegionSamples(self.images, groups, labels, self.augmentation)

    def image_samples(self, indices: list[int], augment: bool) -> Samples:
        """Whole labelled images, whose masks must be open."""
        return ImageSamples(self.images, indices, self.masks, self.augmentation if augment else None)

    def train_dataloader(self) -> DataLoader[Batch]:
        """What :meth:`show` was given last; else the images of ``fit_on``, shuffled and augmented."""
        if self._shown is not None:
            return self._shown
        indices = self.fit_indices()
        self.masks.open(indices)
        samples = self.image_samples(indices, augment=True)
        return self.loader(samples, SeededSampler(len(samples), self.seed), self.batch_size)

    def show(self, samples: Samples, sampler: Draws, batch_size: int | None = None) -> None:
        """From now on train on these samples; the paper's step trains on the regions just labelled."""
        self._shown = self.loader(samples, sampler, batch_size or self.batch_size)

    def show_regions(self, regions: Tensor, labels: RevealedLabels, seed: int) -> None:
        """From now on train on one pass over these labelled regions, augmented by ``seed``."""
        samples = self.region_samples([[region] for region in regions.tolist()], labels)
        self.show(samples, list(SeededSampler(len(samples), seed)))

    def show_fit_images(self) -> None:
        """From now on train on the images of ``fit_on`` again."""
        self._shown = None

    @property
    def trains_on_fit_images(self) -> bool:
        """Whether training sees the images of ``fit_on``, and nothing else is shown."""
        return self._shown is None

    def val_dataloader(self) -> DataLoader[Batch]:
        """What :meth:`score_on` was given last; else the reward set, or its subset of ``reward_images``."""
        if self._scored is None:
            return self._reward_loader
        if self._scored_loader is None:
            self._scored_loader = self.eval_loader(list(self._scored), "set of images to score on")
        return self._scored_loader

    def score_on(self, images: Sequence[int] | None) -> None:
        """From now on score on these images; None: on the reward set again, as at first.

        Only the masks of what is scored on are open: the reward set, too, is behind the oracle while others pay.

        Args:
            images: Positions in the data set.
        """
        scored = None if images is None else tuple(images)
        if scored == self._scored:
            return
        reward_set = self.splits["reward_set"]
        self.masks.close([*reward_set, *(self._scored or ())])
        self.masks.open(reward_set if scored is None else scored)
        self._scored, self._scored_loader = scored, None

    @cached_property
    def _reward_loader(self) -> DataLoader[Batch]:
        """Made once: the game asks for it at every step."""
        return self.eval_loader(self.reward_indices(), "reward_set")

    def reward_indices(self) -> list[int]:
        """The images that are scored on: the reward set, or a subset whose classes are distributed like it."""
        indices = self.labelled_images("reward_set")
        if self.reward_images is None or self.reward_images >= len(indices):
            return indices
        counts = np.stack([class_counts(self.dataset, i) for i in indices])
        rows, _ = choose_representative(counts, self.reward_images, np.random.default_rng(0))
        return [indices[row] for row in rows]

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test set, whose labels are opened here and nowhere else."""
        return self.eval_loader(self.labelled_images("test_set"), "test_set")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """All images in the data set's order; no mask is opened."""
        samples = UnlabelledSamples(self.images, list(range(len(self.dataset))), augmentation=None)
        sampler = SeededSampler(len(samples), shuffle=False)
        return self.loader(samples, sampler, self.eval_batch_size * distributed.size())

    def eval_loader(self, indices: list[int], name: str) -> DataLoader[Batch]:
        """Whole labelled images in their order, as they are; their masks are opened. ``name`` is for messages."""
        if not indices:
            raise ConfigError(f"the {name} is empty; check data.splits")
        self.masks.open(indices)
        samples = self.image_samples(indices, augment=False)
        return self.loader(
            samples, SeededSampler(len(samples), shuffle=False), self.eval_batch_size * distributed.size()
        )

    def loader(self, samples: Samples, sampler: Draws, batch_size: int) -> DataLoader[Batch]:
        """A loader with this module's workers; of batches of ``batch_size`` it gives this process's part."""
        return DataLoader(
            samples,
            batch_sampler=SharedBatches(sampler, batch_size),
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            # else every iterator takes a number from torch's global stream, and Lightning makes one
            # iterator less after a restart: dropout would no longer be the same
            generator=torch.Generator(),
        )
