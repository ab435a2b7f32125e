"""Turns folders of PNG or JPEG images into arrays that the worker trains on.

    python3 -m starring.pack FOLDER OUT [--size=64]
    worker --dataset=npy --data_dir=OUT ...

FOLDER has a folder of images for each class, as torchvision's ImageFolder; or folders train and val or test, which have
them. Classes are numbered in the order of their names, which OUT/classes.txt lists, one a line. Each image is turned as
its EXIF says, its short side is scaled to --size pixels, and the square in its middle is taken. The images have three
channels, unless all of them are grey. Without a test set give the worker --test_fraction=0.1.

Needs NumPy and Pillow (pip install starring[pack]; Debian's python3-numpy and python3-pil).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any, Dict, List, Sequence, Tuple

ENDINGS = (".png", ".jpg", ".jpeg")
TEST_FOLDERS = ("test", "val")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")

Found = List[Tuple[str, int]]  # path and label of each image


class PackError(Exception):
    """The folder cannot be packed. The message names folder or file, and what was expected and found."""


def _folders(folder: str) -> List[str]:
    """The names of the folders in it, in the order of their bytes."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        raise PackError(f"{folder} cannot be read: {error}") from error
    return sorted(names, key=os.fsencode)


def _images_of(folder: str, classes: Sequence[str]) -> Found:
    found: Found = []
    for name in _folders(folder):
        if name not in classes:
            raise PackError(f"{folder} has the class {name}, the training set has {', '.join(classes)}")
        for parent, folders, files in os.walk(os.path.join(folder, name)):
            folders.sort(key=os.fsencode)
            for file in sorted(files, key=os.fsencode):
                if file.lower().endswith(ENDINGS):
                    found.append((os.path.join(parent, file), classes.index(name)))
    if not found:
        raise PackError(f"{folder} has no images: expected {', '.join(ENDINGS)} in a folder for each class")
    return found


def find(folder: str) -> Tuple[List[str], Dict[str, Found]]:
    """The names of the classes, and the images of "train" and, if there is one, "test"."""
    names = _folders(folder)
    train = os.path.join(folder, "train")
    # A folder of images that is named so is a class.
    if "train" not in names or not _folders(train):
        return names, {"train": _images_of(folder, names)}
    classes = _folders(train)
    sets = {"train": _images_of(train, classes)}
    tests = [name for name in TEST_FOLDERS if name in names]
    if len(tests) > 1:
        raise PackError(f"{folder} has both {' and '.join(tests)}: expected one test set, rename the other")
    if tests:
        sets["test"] = _images_of(os.path.join(folder, tests[0]), classes)
    return classes, sets


def _open(path: str) -> Any:
    """Turned upright."""
    from PIL import Image, ImageOps
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PackError(f"{path} is no image that can be read: {error}") from error


def _is_grey(path: str) -> bool:
    from PIL import Image
    try:
        with Image.open(path) as image:
            return image.mode in GREY_MODES
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PackError(f"{path} is no image that can be read: {error}") from error


def picture(path: str, size: int, mode: str) -> Any:
    """The square in the middle of an image, (size, size) or (size, size, 3) uint8."""
    import numpy as np
    from PIL import Image, ImageOps
    try:
        image = _open(path)
        if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow would keep the lower 8
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        return np.asarray(ImageOps.fit(image.convert(mode), (size, size), Image.BILINEAR), np.uint8)
    except (OSError, ValueError, SyntaxError) as error:
        raise PackError(f"{path} is no image that can be read: {error}") from error


def _write(out: str, name: str, found: Found, size: int, mode: str) -> None:
    import numpy as np
    shape = (len(found), size, size) if mode == "L" else (len(found), size, size, 3)
    # The array is filled on the disk, so that it may be larger than memory.
    images = np.lib.format.open_memmap(os.path.join(out, f"{name}_images.npy"), "w+", np.uint8, shape)
    for i, (path, _) in enumerate(found):
        images[i] = picture(path, size, mode)
    images.flush()
    np.save(os.path.join(out, f"{name}_labels.npy"), np.array([label for _, label in found], np.uint16))


def pack(folder: str, out: str, size: int = 64) -> Dict[str, int]:
    """Writes the arrays and classes.txt into the folder `out`. Returns the number of images of each set.

    Raises PackError; then `out` stays as it was. A test set that is in `out` and not in `folder` is deleted.
    """
    classes, sets = find(folder)
    mode = "L" if all(_is_grey(path) for found in sets.values() for path, _ in found) else "RGB"
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=out) as partial:
        for name, found in sets.items():
            _write(partial, name, found, size, mode)
        with open(os.path.join(partial, "classes.txt"), "wb") as file:
            file.writelines(os.fsencode(name) + b"\n" for name in classes)
        # Whole files replace those of an earlier folder, whose test set would not belong to them.
        for name in ("test_images.npy", "test_labels.npy"):
            if os.path.exists(os.path.join(out, name)):
                os.remove(os.path.join(out, name))
        for name in os.listdir(partial):
            os.replace(os.path.join(partial, name), os.path.join(out, name))
    return {name: len(found) for name, found in sets.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m starring.pack", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--size", type=int, default=64, help="side of the images in pixels, 1 to 8192")
    flags = parser.parse_args(arguments)
    if not 1 <= flags.size <= 8192:
        parser.error(f"--size is {flags.size}, it must be from 1 to 8192")
    try:
        counts = pack(flags.folder, flags.out, flags.size)
    except ImportError as error:
        print(f"starring.pack: error: {error}: install NumPy and Pillow (pip install starring[pack])", file=sys.stderr)
        return 2
    except (PackError, OSError) as error:
        print(f"starring.pack: error: {error}", file=sys.stderr)
        return 2
    more = "" if "test" in counts else " --test_fraction=0.1"
    print(f"{', '.join(f'{count} images of {name}' for name, count in counts.items())} in {flags.out}; train on them "
          f"with --dataset=npy --data_dir={os.path.abspath(flags.out)}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
