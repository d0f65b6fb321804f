"""Which image of a file is which image of a request: labelling tools drop folders, add folders, change endings."""

from collections.abc import Iterable, Sequence

from ralseg.annotation.files.record import FoundImage
from ralseg.errors import DataError
from ralseg.runtime.files import inside

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")


def parts_of(name: str) -> tuple[str, ...]:
    """Folders and name without the ending of an image, for comparison.

    Examples:
        >>> parts_of("images/train/0001.jpg")
        ('images', 'train', '0001')
    """
    *folders, last = inside(name.replace("\\", "/")).parts
    return *folders, without_ending(last)


def without_ending(name: str) -> str:
    """A name without the ending of an image; other endings belong to the name."""
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)] if len(name) > len(ending) else name


def match_images(wanted: Iterable[str], found: Sequence[FoundImage], source: str) -> dict[str, FoundImage]:
    """The images of a file by the names that a request has for them; those that nobody wants are left out.

    A name fits another if it is the same or, from the right, the same as far as the shorter one goes: ``0001`` and
    ``images/train/0001.jpg`` fit ``train/0001.png``. Where several fit, the same name wins, then the longest.

    Args:
        wanted: Names of a request.
        found: Images of a file.
        source: The file, for messages.

    Examples:
        >>> def image(name): return FoundImage(name, 4, 4, lambda box: None)
        >>> found = [image("images/train/0001.jpg"), image("val/0001.png")]
        >>> match_images(["train/0001.png"], found, "answers.zip")["train/0001.png"].name
        'images/train/0001.jpg'
    """
    by_last: dict[str, list[FoundImage]] = {}
    for image in found:
        by_last.setdefault(parts_of(image.name)[-1], []).append(image)
    matched: dict[str, FoundImage] = {}
    taken: dict[int, str] = {}
    for name in wanted:
        best = _best(name, by_last.get(parts_of(name)[-1], []), source)
        if best is None:
            continue
        other = taken.setdefault(id(best), name)
        if other != name:
            raise DataError(
                f"{source}: {best.name!r} may be {other!r} or {name!r} of the request; give it the folders of one"
            )
        matched[name] = best
    return matched


def _best(name: str, candidates: list[FoundImage], source: str) -> FoundImage | None:
    """The image that fits a name best; None where none does, an error where two fit equally well."""
    fits = [(_fit(name, image.name), image) for image in candidates]
    best = max((fit for fit, _ in fits), default=(0, 0))
    if not best[1]:
        return None
    first, *others = [image for fit, image in fits if fit == best]
    if others:
        raise DataError(f"{source}: {first.name!r} and {others[0].name!r} both fit image {name!r} of the request")
    return first


def _fit(first: str, second: str) -> tuple[int, int]:
    """How well two names fit: whether they are the same, and how many parts are; (0, 0): not at all."""
    one, other = parts_of(first), parts_of(second)
    common = min(len(one), len(other))
    return (int(first == second), common) if one[-common:] == other[-common:] else (0, 0)
