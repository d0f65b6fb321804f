"""Images that nobody has sorted into subsets: who tests, who pays, who trains."""

import hashlib
from collections.abc import Mapping, Sequence

DEFAULT_SHARES = {"val": 0.2, "test": 0.2}


def share_out(
    names: Sequence[str], labelled: Sequence[bool], scenes: Sequence[str | None], shares: Mapping[str, float]
) -> list[str]:
    """The subset of each image. The names alone decide, so that every draw of the same images is the same.

    Labelled images stand in the order of a checksum of their names. The first are for ``test``, the next for ``val``,
    the rest and all images without a label for ``train``. Labelled images of one scene stay together.

    Args:
        names: Of all images.
        labelled: Which of them have a mask.
        scenes: The scene of each image; None where it is not known.
        shares: How much of the labelled images ``test`` and ``val`` get, from 0 to 1.

    Examples:
        >>> names = ["a", "b", "c", "d", "e"]
        >>> share_out(names, [True] * 5, [None] * 5, {"val": 0.2, "test": 0.2})
        ['train', 'test', 'val', 'train', 'train']
    """
    groups: dict[str, list[int]] = {}
    for index, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        if labelled[index]:
            groups.setdefault(f"image {name}" if scene is None else f"scene {scene}", []).append(index)
    waiting = sorted(groups, key=lambda group: hashlib.sha256(group.encode("utf-8", "surrogateescape")).digest())
    subsets = ["train"] * len(names)
    for subset in ("test", "val"):
        wanted, taken = shares.get(subset, 0.0) * sum(labelled), 0
        # a group is taken if that brings the subset nearer to its share; the first always is
        while waiting and wanted > 0 and (not taken or taken + len(groups[waiting[0]]) / 2 <= wanted):
            members = groups[waiting.pop(0)]
            taken += len(members)
            for index in members:
                subsets[index] = subset
    return subsets
