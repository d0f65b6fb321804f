"""Which mask belongs to which image: by the names of their files."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from ralseg.data.readers import SUFFIXES

STEM = "{stem}"
"""Stands in a pattern for the name of the image without its ending."""
_LOOKED_AT = 500  # masks; more of them tell nothing new about how masks are named


def pair_masks(
    images: Iterable[PurePath], masks: Iterable[PurePath], mask_name: str = STEM
) -> tuple[list[PurePath | None], list[PurePath]]:
    """The mask of each image, None where it has none; and the masks that belong to no image.

    Masks lie in the same subfolders as their images. Of several, a PNG is taken.

    Args:
        images: Paths inside of the folder of images.
        masks: Paths inside of the folder of masks.
        mask_name: Pattern of a mask's name; without an ending it stands for files of any ending.

    Examples:
        >>> images, masks = [PurePath("train/a.jpg"), PurePath("train/b.jpg")], [PurePath("train/a_mask.png")]
        >>> pair_masks(images, masks, "{stem}_mask")
        ([PurePosixPath('train/a_mask.png'), None], [])
    """
    in_order = sorted(masks, key=lambda path: (path.suffix.lower() != ".png", path))
    known: dict[PurePath, PurePath] = {}
    for mask in in_order:
        known.setdefault(mask if has_ending(mask_name) else mask.with_suffix(""), mask)
    pairs = [known.get(image.with_name(mask_name.replace(STEM, image.stem))) for image in images]
    taken = {pair.with_suffix("") for pair in pairs if pair is not None}
    return pairs, sorted(mask for mask in in_order if mask.with_suffix("") not in taken)


def has_ending(mask_name: str) -> bool:
    """Whether a pattern says the ending of files, ``{stem}_mask.png`` for example."""
    return mask_name.lower().endswith(SUFFIXES)


def find_mask_name(images: Sequence[PurePath], masks: Sequence[PurePath]) -> str | None:
    """The pattern of masks' names that explains most of them; None where none explains half of them.

    Args:
        images: Paths inside of the folder of images.
        masks: Paths inside of the folder of masks.

    Examples:
        >>> find_mask_name([PurePath("a.jpg"), PurePath("b.jpg")], [PurePath("gt_a.png"), PurePath("gt_b.png")])
        'gt_{stem}'
    """
    stems: dict[PurePath, set[str]] = defaultdict(set)
    for image in images:
        stems[image.parent].add(image.stem)
    step = max(1, len(masks) // _LOOKED_AT)
    looked_at = masks[::step]
    votes = Counter(pattern for mask in looked_at for pattern in _patterns(mask, stems[mask.parent]))
    if not votes:
        return None
    # of patterns that explain as much, the one that adds least
    best = min(votes, key=lambda pattern: (-votes[pattern], len(pattern), pattern))
    return best if votes[best] * 2 >= len(looked_at) else None


def _patterns(mask: PurePath, stems: set[str]) -> set[str]:
    """All patterns by which the mask could belong to one of the images."""
    name, found = mask.stem, set()
    for start in range(len(name)):
        for end in range(start + 1, len(name) + 1):
            if name[start:end] in stems:
                pattern = name[:start] + STEM + name[end:]
                found.add(pattern + mask.suffix if has_ending(pattern) else pattern)
    return found
