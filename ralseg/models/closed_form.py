"""The closed-form segmenter: a linear discriminant on frozen features, always converged on everything it was shown."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Batch
from ralseg.data.splits import SETS
from ralseg.errors import ConfigError
from ralseg.labels.layout import RegionMaps, Regions
from ralseg.labels.vault import IGNORE
from ralseg.models import discriminant
from ralseg.models.discriminant import Head, Moments
from ralseg.models.feature_store import FeatureStore
from ralseg.models.frozen_features import FrozenFeatures
from ralseg.models.prediction import Prediction, Seeds
from ralseg.models.segmenter import Segmenter
from ralseg.models.whole_image import Place
from ralseg.runtime import distributed

PCA_IMAGES = 40
"""Images that the principal components are found from."""
_CREDIT_ROWS = 48  # regions whose credit is computed at a time: their logits fit a processor's cache


@dataclass(frozen=True)
class RewardPixels:
    """A sample of labelled pixels of the images that pay, for the credit of single regions."""

    features: Tensor  # [M, D]
    classes: Tensor  # [M]


class ClosedFormPrediction(Prediction):
    """A prediction that is only computed where it is asked for: at the candidates, a tenth of all pixels.

    Args:
        segmenter: The segmenter.
        image: [b, 3, H, W] uint8.
        features: [m, h, w, D] features of images; where all are in RAM, of every image that there is.
        rows: [b] where the images stand among them.
        slots: Where the segmenter keeps what it knows of each image.
    """

    segmenter: "ClosedFormSegmenter"

    def __init__(
        self, segmenter: "ClosedFormSegmenter", image: Tensor, features: Tensor, rows: Tensor, slots: list[int]
    ) -> None:
        self.segmenter, self.image = segmenter, image
        self._features, self._rows, self._slots = features, rows, slots
        self._last: tuple[Tensor, RegionMaps] | None = None

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]  # computed where the base class is given it
        """[b, C, h, w]."""
        return self.segmenter.head.logits(self._features[self._rows].to(self.image.device)).movedim(-1, 1)

    def embedding(self) -> Tensor:
        """The features: [b, D, h, w]."""
        return self._features[self._rows].to(self.image.device).movedim(-1, 1)

    def _at(self, regions: Regions, rows: Tensor, numbers: Tensor) -> RegionMaps:
        """Features of regions: [r, D, h, w]; kept, because several measures ask for the same ones."""
        if self._last is None or self._last[0] is not numbers:
            maps = regions.cut(self._features.movedim(-1, 1), self._rows[rows.cpu()], numbers.cpu())
            inside = None if maps.inside is None else maps.inside.to(numbers.device)
            self._last = numbers, RegionMaps(maps.values.to(numbers.device), inside)
        return self._last[1]

    def cut(self, regions: Regions, rows: Tensor, numbers: Tensor) -> RegionMaps:
        """Logits at regions: [r, C, h, w]."""
        maps = self._at(regions, rows, numbers)
        return RegionMaps(self.segmenter.head.logits(maps.values.movedim(1, -1)).movedim(-1, 1), maps.inside)

    def average(self, regions: Regions, rows: Tensor, numbers: Tensor) -> Tensor:
        """Mean features of regions: [r, D]."""
        maps = self._at(regions, rows, numbers)
        return maps.mean(maps.values)

    def _drawn(self, samples: int, seeds: Seeds) -> Head:
        """Classifiers under drawn class means, the same for all images: weights [samples, C, D]."""
        shape = (samples, *self.segmenter.head.weight.shape)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(seeds.step))
        heads = self.segmenter.sampled_heads(noise.to(self.segmenter.counts.device))
        return Head(heads.weight.float(), heads.bias.float())

    def sampled_at(
        self, regions: Regions, rows: Tensor, numbers: Tensor, samples: int, seeds: Seeds
    ) -> Iterator[Tensor]:
        """Logits at regions under class means drawn from what the labels leave open; each [r, C, h, w]."""
        yield from self._logits(self._at(regions, rows, numbers).values, self._drawn(samples, seeds))

    def sampled(self, samples: int, seeds: Seeds) -> Iterator[Tensor]:
        """The same on whole images; each [b, C, h, w]."""
        yield from self._logits(self.embedding(), self._drawn(samples, seeds))

    @staticmethod
    def _logits(maps: Tensor, heads: Head) -> Iterator[Tensor]:
        """Logits of maps [b, D, h, w] by each of several classifiers; each [b, C, h, w]."""
        for weight, bias in zip(*heads, strict=True):
            logits = torch.matmul(weight, maps.flatten(2)) + bias[:, None]
            yield logits.unflatten(2, maps.shape[2:])

    def frame(self, filled: list[tuple[float, float]]) -> Tensor:
        """Mean features of whole images: [b, D]."""
        return self.segmenter.frames(self.image, self._slots)

    def credit(self, regions: Regions, rows: Tensor, numbers: Tensor, labels: Tensor, judge: Any) -> Tensor:
        """The change of mean IoU on the judge's pixels if one region alone were labelled: [r]."""
        maps = self._at(regions, rows, numbers)
        known = regions.cut(self.segmenter.taken_from(self.image, self._slots), rows, numbers).values
        is_new = known == IGNORE  # a pixel counts once
        classes = torch.where(is_new if maps.inside is None else is_new & maps.inside, labels, IGNORE)
        return self.segmenter.credit(maps.values.flatten(2).mT, classes.flatten(1), judge)


class ClosedFormSegmenter(Segmenter):
    """Linear discriminant analysis on a frozen encoder's features: trained by counting, exact, and incremental.

    It keeps number, sum and products of the features of every labelled pixel, class by class, and solves for the
    classifier after each batch. So it is converged at every moment, needs no optimizer, and gives the same whatever
    the order of the labels. A pixel counts once: shown again it changes nothing, shown with another class it is
    corrected. That makes a game about fifty times cheaper than with a decoder that learns by gradients.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        encoder: Encoder name of segmentation-models-pytorch.
        encoder_weights: ``imagenet`` (downloaded), ``efficientnet_lite0`` (installed by pip),
            ``none``, or a file of weights for this encoder.
        encoder_strides: Strides to change in the encoder, by the name of the convolution.
        components: Principal components of the encoder's channels that are kept.
        shrinkage: Share of the covariance that is replaced by its mean variance, from 0 to 1.
        prior_power: Classes count in proportion to this power of their labelled pixels; 1/2 is what weights of
            1/sqrt(frequency) come to.
        pixels_per_observation: Labelled pixels that count as one when BALD asks how well class means are known:
            neighbours are much alike.
        feature_cache_gb: How many GB of features are kept in RAM; the rest goes to disk.
        grid_stride: Learn from and score every n-th row and column of pixels; ``label_stride`` of other segmenters.
        options: Options of every :class:`Segmenter`.

    Examples:
        >>> net = ClosedFormSegmenter(("road", "sky"), encoder="tu-test_resnet", encoder_weights="none", components=8)
        >>> image = torch.randint(256, (1, 3, 64, 96), dtype=torch.uint8)
        >>> net.features.fit(image)
        >>> mask = (torch.arange(64) < 32).to(torch.uint8)[None, :, None].expand(1, 64, 96)  # sky above road
        >>> loss = net.loss(Batch(image, mask, torch.tensor([0]), torch.tensor([False])))
        >>> net(image).shape, net.counts.tolist()
        (torch.Size([1, 2, 64, 96]), [192.0, 192.0])
    """

    counts: Tensor
    sums: Tensor
    products: Tensor
    keys: Tensor  # [i] what tells the images apart that pixels were taken from
    taken: Tensor  # [i, h, w] the classes that were taken from them, 255 = none
    encoder_prefix, has_frozen_encoder = "features.encoder.", True

    def __init__(
        self,
        class_names: tuple[str, ...],
        encoder: str = "tu-tf_efficientnet_lite0",
        encoder_weights: str = "efficientnet_lite0",
        encoder_strides: dict[str, int] | None = None,
        components: int = 64,
        shrinkage: float = 0.3,
        prior_power: float = 0.5,
        pixels_per_observation: float = 64.0,
        feature_cache_gb: float = 4.0,
        grid_stride: Literal[1, 2, 4] = 4,
        **options: Any,
    ) -> None:
        super().__init__(class_names, label_stride=grid_stride, **options)
        if not 0 <= shrinkage <= 1:
            raise ConfigError(f"model.shrinkage={shrinkage} must lie between 0 and 1")
        if components < 1 or not 0 <= prior_power <= 1 or pixels_per_observation <= 0:
            raise ConfigError(
                f"model.components={components} must be 1 or more, model.prior_power={prior_power} lie between 0 and "
                f"1, and model.pixels_per_observation={pixels_per_observation} be above 0"
            )
        if self.class_weights != "none":
            raise ConfigError("model.class_weights: a closed-form segmenter has model.prior_power instead")
        self.encoder_name, self.encoder_strides = encoder, dict(encoder_strides or {})
        self.shrinkage, self.prior_power = shrinkage, prior_power
        self.pixels_per_observation = pixels_per_observation
        self.features = FrozenFeatures(encoder, encoder_weights, self.encoder_strides, components, grid_stride)
        self.note_origin(encoder_weights)
        empty = Moments.empty(len(self.class_names), self.features.num_features)
        self.register_buffer("counts", empty.counts)
        self.register_buffer("sums", empty.sums)
        self.register_buffer("products", empty.products)
        self.register_buffer("keys", torch.empty(0, dtype=torch.int64))
        self.register_buffer("taken", torch.empty(0, 0, 0, dtype=torch.uint8))
        # follows no gradient, and stays 0: Lightning counts training steps by those of an optimizer
        self.clock = nn.Parameter(torch.zeros(()))
        self._cache_bytes = int(feature_cache_gb * 1e9)
        self._store = FeatureStore()
        self.refit()

    def describe(self) -> dict[str, Any]:
        """What makes the features, and the classes; head options may change from run to run."""
        return {
            "class": type(self).__name__,
            "encoder": self.encoder_name,
            "encoder_strides": self.encoder_strides,
            "components": self.features.num_features,
            "grid_stride": self.label_stride,
            "class_names": list(self.class_names),
        }

    def train(self, mode: bool = True) -> "ClosedFormSegmenter":
        """Set training mode, here alone: no part behaves otherwise, and the game changes mode several times a step."""
        self.training = mode
        return self

    def prepare(self, data: SegmentationData) -> None:
        """Find the principal components of the data's images, unless they are known, and make room for features."""
        if distributed.size() > 1:
            raise ConfigError(
                "a closed-form segmenter works on one device; set trainer.devices to 1, and let trainer.actors play "
                "several games at a time"
            )
        if data.augmentation.crop is not None:
            raise ConfigError("a closed-form segmenter needs whole images: set data.crop to null")
        if not self.features.is_fitted:
            known = [index for name in SETS if name != "test_set" for index in data.splits[name]]
            chosen = known[:: -(-len(known) // PCA_IMAGES)]
            if not chosen:
                raise ConfigError("there are no images to learn features from; check data.splits")
            self.features.fit(data.unpadded(index) for index in chosen)
        shape = (*self.features.grid(data.images[0]), self.features.num_features)
        self._store = self._store.of(self.features.basis)
        self._store.open(data, shape, self._cache_bytes, self.features.basis)

    # -- features ---------------------------------------------------------------------------------

    def _fill(self, image: Tensor, slots: list[int]) -> None:
        """Make the features of images that are not kept yet, one at a time as FeatureCache does."""
        for position, slot in enumerate(slots):
            if slot not in self._store:
                self._store.fill(slot, self.features, image[position : position + 1])

    def pixel_features(self, image: Tensor, index: Tensor, flipped: Tensor | None = None) -> Tensor:
        """Features of every point of the grid: [B, 3, H, W] -> [B, h, w, D]; kept where there is room for them."""
        if not self._store.is_open:
            return torch.cat([self.features(one[None]) for one in image])
        slots = (2 * index + (0 if flipped is None else flipped)).tolist()
        self._fill(image, slots)
        return self._store.stack(slots).to(image.device)

    def frames(self, image: Tensor, slots: list[int]) -> Tensor:
        """Mean features of whole images: [B, 3, H, W] -> [B, D]."""
        if not self._store.is_open:
            return torch.cat([self.features(one[None]) for one in image]).mean((1, 2))
        self._fill(image, slots)
        return self._store.means(slots).to(image.device)

    def predict_batch(self, image: Tensor, index: Tensor) -> ClosedFormPrediction:
        """A prediction at the points that will be asked for."""
        everything, slots = self._store.everything(), (2 * index).tolist()
        if everything is None:
            return ClosedFormPrediction(self, image, self.pixel_features(image, index), torch.arange(len(image)), slots)
        self._fill(image, slots)
        return ClosedFormPrediction(self, image, everything, torch.tensor(slots), slots)

    def logits(self, image: Tensor, index: Tensor, flipped: Tensor | None = None, stride: int = 1) -> Tensor:
        """As :meth:`forward`, at every ``stride``-th pixel and with kept features."""
        grid = self.head.logits(self.pixel_features(image, index, flipped)).movedim(-1, 1)
        return grid if stride == self.label_stride else self._upsampled(grid, image)[..., ::stride, ::stride]

    def forward(self, image: Tensor) -> Tensor:
        """Logits of every pixel: [B, 3, H, W] uint8 -> [B, C, H, W]."""
        return self._upsampled(self.head.logits(self.features(image)).permute(0, 3, 1, 2), image)

    def tile_logits(self, image: Tensor, place: Place) -> Tensor:
        """As :meth:`forward`, for a tile of a larger image: a pixel's place in it is among the features."""
        return self._upsampled(self.head.logits(self.features(image, place)).permute(0, 3, 1, 2), image)

    def _upsampled(self, grid: Tensor, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        if self.label_stride == 1:
            return grid
        large = functional.interpolate(grid, scale_factor=self.label_stride, mode="bilinear", align_corners=False)
        return large[..., :height, :width]

    # -- learning ---------------------------------------------------------------------------------

    @property
    def moments(self) -> Moments:
        """What is known of the labelled pixels."""
        return Moments(self.counts, self.sums, self.products)

    def refit(self) -> None:
        """Solve for the classifier."""
        head = discriminant.fit(self.moments, self.shrinkage, self.prior_power)
        self.head = Head(head.weight.float(), head.bias.float())

    def loss(self, batch: Batch) -> Tensor:
        """Take in the labelled pixels of a batch and refit; the loss of those that are new, as it was before.

        All learning happens here. There is no gradient to follow: the loss has one of 0.
        """
        with torch.no_grad():
            loss = self._take(batch)
            self.refit()
        return loss + 0 * self.clock

    def at_labels(self, maps: Tensor) -> Tensor:
        """Masks at the middle of each cell of the grid, which the encoder's features describe."""
        height, width = maps.shape[-2:]
        down, across = (
            (torch.arange(0, size, self.label_stride) + self.label_stride // 2).clamp(max=size - 1)
            for size in (height, width)
        )
        return maps[..., down[:, None], across]

    def _take(self, batch: Batch) -> Tensor:
        """Count the pixels of a batch that are labelled and not known yet; their mean cross-entropy."""
        masks = self.at_labels(batch.mask)
        slots: list[int] = (2 * batch.image_index + batch.flipped).tolist()
        rows = torch.tensor([self._row(slot, image) for slot, image in zip(slots, batch.image, strict=True)])
        if self.taken.shape[1:] != masks.shape[1:]:
            self.taken = self.taken.new_empty(0, *masks.shape[1:])
        missing = len(self.keys) - len(self.taken)
        self.taken = torch.cat([self.taken, self.taken.new_full((missing, *masks.shape[1:]), IGNORE)])
        place, y, x = (masks != IGNORE).nonzero().unbind(1)
        spot, last = _last_of_each((rows.to(place)[place] * masks.shape[1] + y) * masks.shape[2] + x)
        place, y, x = place[last], y[last], x[last]
        labels, before = masks[place, y, x], self.taken.view(-1)[spot]
        changed = labels != before
        if not changed.any():
            return self.clock.new_zeros(())
        pixels = self._pixels(batch, slots, place[changed], y[changed], x[changed])
        labels, before = labels[changed], before[changed]
        known, moments = before != IGNORE, self.moments
        if known.any():
            moments.add(pixels[known], before[known], sign=-1)
        moments.add(pixels, labels)
        self.taken.view(-1)[spot[changed]] = labels
        return functional.cross_entropy(self.head.logits(pixels), labels.long())

    def _row(self, slot: int, image: Tensor) -> int:
        """Where the classes taken from an image stand; there is a new place for one that was never seen."""
        key = self._store.key(slot, image)
        found = (self.keys == key).nonzero().flatten()
        if len(found):
            return int(found[0])
        self.keys = torch.cat([self.keys, self.keys.new_tensor([key])])
        return len(self.keys) - 1

    def taken_from(self, image: Tensor, slots: list[int]) -> Tensor:
        """The classes taken from images so far, 255 = none: [b, 3, H, W] -> [b, h, w]."""
        maps = torch.full((len(image), *self.features.grid(image)), IGNORE, dtype=torch.uint8, device=self.taken.device)
        for place, slot in enumerate(slots):
            found = (self.keys == self._store.key(slot, image[place])).nonzero().flatten()
            if len(found):
                maps[place] = self.taken[int(found[0])]
        return maps

    def _pixels(self, batch: Batch, slots: list[int], place: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Features of single points of a batch: [n, D]."""
        everything = self._store.everything()
        if everything is None:
            return self.pixel_features(batch.image, batch.image_index, batch.flipped)[place, y, x]
        self._fill(batch.image, slots)
        return everything[torch.tensor(slots)[place.cpu()], y.cpu(), x.cpu()].to(batch.image.device)

    # -- what only a closed form can tell ---------------------------------------------------------

    def sampled_heads(self, noise: Tensor) -> Head:
        """Classifiers under class means drawn from their posterior: [..., C, D] -> weights of that shape."""
        observations = self.counts / self.pixels_per_observation
        return discriminant.sample(self.moments, self.shrinkage, self.prior_power, observations, noise)

    def reward_pixels(self, batches: Iterable[Batch], number: int, generator: torch.Generator) -> RewardPixels:
        """A sample of the labelled pixels of the images that pay, drawn without replacement."""
        features, classes = [], []
        for batch in batches:
            moved = Batch(*(part.to(self.device) for part in batch))
            mask = self.at_labels(moved.mask)
            pixels = self.pixel_features(moved.image, moved.image_index, moved.flipped)
            features.append(pixels[mask != IGNORE])
            classes.append(mask[mask != IGNORE].long())
        labels = torch.cat(classes)
        chosen = torch.randperm(len(labels), generator=generator)[:number].to(labels.device)
        return RewardPixels(torch.cat(features)[chosen], labels[chosen])

    def credit(self, pixels: Tensor, classes: Tensor, judge: RewardPixels) -> Tensor:
        """The change of mean IoU on the judge's pixels if each region alone were added: [r, p, D], [r, p] -> [r]."""
        num_classes = len(self.class_names)
        now = discriminant.mean_iou(self.head.logits(judge.features).argmax(1)[None], judge.classes, num_classes)
        found = []
        for some, labels in zip(pixels.split(_CREDIT_ROWS), classes.split(_CREDIT_ROWS), strict=True):
            heads = discriminant.fit_with_each(self.moments, some, labels, self.shrinkage, self.prior_power)
            logits = torch.baddbmm(
                heads.bias.float()[:, None], judge.features.expand(len(some), -1, -1), heads.weight.float().mT
            )
            found.append(discriminant.mean_iou(logits.max(2).indices, judge.classes, num_classes))
        return (torch.cat(found) - now).float()

    # -- the rest of a segmenter ------------------------------------------------------------------

    def trained_tensors(self) -> list[Tensor]:
        """None: sums over pixels are not to be averaged over steps."""
        return []

    def statistics(self) -> list[Tensor]:
        """None: it works in one process."""
        return []

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take weights; a state whose components were never found leaves those that there are."""
        basis = state.get("features.basis")
        if basis is None or basis.shape != self.features.basis.shape:
            self.load_state_dict(state)  # says what does not fit
        elif not basis.any() or torch.equal(basis.cpu(), self.features.basis.cpu()):
            # the same features, as in every game of a run: only what was learned differs
            learned = {key: tensor for key, tensor in state.items() if not key.startswith("features.")}
            self.load_state_dict(learned, strict=False)
        else:
            self.load_state_dict(state)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Take weights; features that others made are not kept for new ones."""
        found = super().load_state_dict(state_dict, *args, **kwargs)
        self._store = self._store.of(self.features.basis)
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take what is known of pixels, however many images they are from, and solve for the classifier."""
        for name in ("keys", "taken"):
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(self, name, torch.empty_like(saved, device=self.counts.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.refit()


def _last_of_each(values: Tensor) -> tuple[Tensor, Tensor]:
    """Different values in ascending order, and where each stands last: [n] -> [m], [m]."""
    ordered, order = values.sort(stable=True)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return ordered[is_last], order[is_last]
