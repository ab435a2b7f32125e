"""Batches for a training loop of PyTorch or NumPy from Starring's own loader, as an iterable in DataLoader's place.

    from starring import data

    mnist = data.Dataset("mnist", data_dir="data")
    train = data.Loader(mnist, batch=64, rank=rank, world_size=world_size, seed=1)
    test = data.Loader(mnist, batch=1000, split="test")
    for epoch in range(3):
        for images, labels in train:
            ...

Images and targets are tensors over the loader's own memory, without a copy: threads of the library, not processes, fill
them some batches ahead. A batch's memory goes back to the loader when its last tensor, or the last view of one, is
gone. So a batch may be kept as long as anyone needs it; a loop that keeps none uses the same few blocks over and over.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import math
import os
import time
import weakref
from typing import Any, Dict, Iterator, Sequence, Tuple

from ._library import INVALID, load, OK, StarringError, TIMEOUT

__all__ = ["Dataset", "Facts", "Loader", "StarringError"]

SPLITS = ("train", "test")
AUGMENTS = ("none", "crop_flip")
CIFAR100_LABELS = ("fine", "coarse")
TARGETS = ("class", "numbers", "bits")  # in the order of ST_TARGET_CLASS, which is 1, and those after it
ARRAYS = ("torch", "numpy")

# So that Ctrl-C is seen while a batch is late.
_PATIENCE_S = 0.25
_ENDLESS = 10**12  # steps: the most that the library takes


class _DatasetOptions(ctypes.Structure):
    """st_dataset_options."""
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("data_dir", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("synthetic_train_count", ctypes.c_int64),
        ("synthetic_test_count", ctypes.c_int64),
        ("synthetic_height", ctypes.c_int64),
        ("synthetic_width", ctypes.c_int64),
        ("synthetic_channels", ctypes.c_int64),
        ("synthetic_classes", ctypes.c_int64),
        ("cifar100_labels", ctypes.c_int32),
        ("test_fraction", ctypes.c_double),
        ("split_seed", ctypes.c_uint64),
        ("csv_label", ctypes.c_char_p),
        ("target", ctypes.c_int32),
    ]


class _DatasetFacts(ctypes.Structure):
    """st_dataset_facts."""
    _fields_ = [
        ("count", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("target", ctypes.c_int32),
        ("target_values", ctypes.c_int64),
        ("mean", ctypes.POINTER(ctypes.c_float)),
        ("deviation", ctypes.POINTER(ctypes.c_float)),
    ]


class _LoaderOptions(ctypes.Structure):
    """st_loader_options."""
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("dataset", ctypes.c_void_p),
        ("set", ctypes.c_int32),
        ("augment", ctypes.c_int32),
        ("global_batch", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("world_size", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("shuffle", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("prefetch_depth", ctypes.c_int32),
        ("first_step", ctypes.c_int64),
        ("end_step", ctypes.c_int64),
        ("deadline_s", ctypes.c_double),
        ("mean", ctypes.POINTER(ctypes.c_float)),
        ("deviation", ctypes.POINTER(ctypes.c_float)),
    ]


class _Batch(ctypes.Structure):
    """st_batch."""
    _fields_ = [
        ("step", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("global_count", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("images", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
    ]


@functools.lru_cache(maxsize=None)
def _functions() -> Any:
    """The library, with the prototypes of starring_data.h."""
    library = load()
    handle = ctypes.c_void_p
    prototypes: Dict[str, Any] = {
        "st_dataset_open": [ctypes.POINTER(_DatasetOptions), ctypes.POINTER(handle)],
        "st_dataset_facts_of": [handle, ctypes.c_int32, ctypes.POINTER(_DatasetFacts)],
        "st_dataset_close": [handle],
        "st_loader_open": [ctypes.POINTER(_LoaderOptions), ctypes.POINTER(handle)],
        "st_loader_next": [handle, ctypes.POINTER(_Batch)],
        "st_loader_give_back": [handle, handle],
        "st_loader_close": [handle],
        "st_data_last_error": [],
    }
    for name, arguments in prototypes.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_char_p if name == "st_data_last_error" else ctypes.c_int
    return library


def _check(code: int) -> None:
    if code != OK:
        sentence = _functions().st_data_last_error().decode("utf-8", "replace")
        raise StarringError(sentence, "invalid" if code == INVALID else "internal")


def _index(what: str, value: str, allowed: Sequence[str]) -> int:
    if value not in allowed:
        raise ValueError(f"{what} is {value!r}, it must be one of {', '.join(allowed)}")
    return allowed.index(value)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a data set is."""
    count: int
    channels: int
    height: int
    width: int
    classes: int  # 0 unless the target is "class"
    target: str  # "class", "numbers" or "bits"
    target_values: int  # numbers or bits of a sample; 0 if the target is "class"

    @property
    def outputs(self) -> int:
        """Of a model for these data: one for each class, number or bit."""
        return self.classes if self.target == "class" else self.target_values


class Dataset:
    """The images or numbers of a data set, and its targets, mapped or in memory; loaders share it.

    `name` is as the worker's flag --dataset, the other arguments as its flags of their names (`worker --help`);
    `data_dir` is the folder with the files, plain or gzipped. Without a data_dir, fashion-mnist is Debian's package
    dataset-fashion-mnist. `synthetic` sets the sizes of synthetic data: train_count, test_count, height, width,
    channels, classes.

    `target`: what a model has to say of a sample: "class", "numbers" or "bits", as cross entropy, MSELoss and
    BCEWithLogitsLoss need them. None: what the files have, and classes in a table. Two classes serve as one bit, which
    is 1 for the second of them.

    Raises StarringError with the name of a file that is missing or damaged, and with what was expected and found; and
    for another target than the files can give.
    """

    def __init__(self, name: str, data_dir: str = "", seed: int = 0, cifar100_labels: str = "fine",
                 test_fraction: float = 0.0, split_seed: int = 1, csv_label: str = "",
                 target: str | None = None, **synthetic: int) -> None:
        options = _DatasetOptions(ctypes.sizeof(_DatasetOptions), name.encode(), os.fsencode(data_dir), seed)
        options.cifar100_labels = _index("cifar100_labels", cifar100_labels, CIFAR100_LABELS)
        options.test_fraction, options.split_seed = test_fraction, split_seed
        options.csv_label = csv_label.encode()
        options.target = 0 if target is None else 1 + _index("target", target, TARGETS)
        for field, value in synthetic.items():
            if name != "synthetic" or not hasattr(options, "synthetic_" + field):
                raise TypeError(f"Dataset(\"{name}\") takes no argument {field}")
            setattr(options, "synthetic_" + field, value)
        self.name = name
        self.handle = ctypes.c_void_p()
        library = _functions()
        _check(library.st_dataset_open(ctypes.byref(options), ctypes.byref(self.handle)))
        weakref.finalize(self, library.st_dataset_close, self.handle)

    def _facts(self, split: str) -> _DatasetFacts:
        facts = _DatasetFacts()
        _check(_functions().st_dataset_facts_of(self.handle, _index("split", split, SPLITS), ctypes.byref(facts)))
        return facts

    def facts(self, split: str = "train") -> Facts:
        """Number and shape of the images of one split, and what is known of each."""
        facts = self._facts(split)
        return Facts(facts.count, facts.channels, facts.height, facts.width, facts.classes, TARGETS[facts.target - 1],
                     facts.target_values)

    def normalization(self) -> Tuple[Tuple[float, ...], Tuple[float, ...]]:
        """Mean and deviation of each channel of the training set: of pixel / 255, or of numbers."""
        facts = self._facts("train")
        return tuple(facts.mean[:facts.channels]), tuple(facts.deviation[:facts.channels])


class _OpenLoader:
    """An st_loader. Closing it leaves the batches that are still in use."""

    def __init__(self, options: _LoaderOptions, facts: Facts) -> None:
        library = _functions()
        self.next_step = options.first_step
        self.process = os.getpid()
        self._library = library
        self._handle = ctypes.c_void_p()
        _check(library.st_loader_open(ctypes.byref(options), ctypes.byref(self._handle)))
        self.close = weakref.finalize(self, library.st_loader_close, self._handle)
        self._samples_max = -(-min(options.global_batch, facts.count) // options.world_size)
        self._image_bytes = 4 * facts.channels * facts.height * facts.width
        self._block: Any = None

    def take(self, deadline_s: float) -> Tuple[_Batch, Any]:
        """The next batch, and the object that owns its memory: the memory goes back when that object is gone."""
        batch = _Batch()
        end = time.monotonic() + deadline_s
        while True:
            code = self._library.st_loader_next(self._handle, ctypes.byref(batch))
            if code != TIMEOUT or time.monotonic() >= end:
                break
        _check(code)
        self.next_step += 1
        if self._block is None:
            self._block = self._block_type(batch)
        return batch, self._block.from_address(batch.memory)

    def _block_type(self, batch: _Batch) -> Any:
        """The type of the memory of one batch. Tensors and arrays over such an object keep it alive."""
        give_back, handle = self._library.st_loader_give_back, self._handle
        address_of = ctypes.addressof
        # Labels are the last part of a block; targets come before the images. All blocks are alike.
        last, sample_bytes = (batch.labels, 8) if batch.labels is not None else (batch.images, self._image_bytes)
        size = last - batch.memory + self._samples_max * sample_bytes

        class Block(ctypes.c_ubyte * size):  # type: ignore[misc,valid-type]
            """The memory of one batch."""

            def __del__(self) -> None:
                give_back(handle, address_of(self))

        return Block


class Loader:
    """An iterable over batches (images, targets): each iteration is one epoch, and len() the number of its batches.

    images  float32, (samples, channels, height, width), normalised. In memory the channels of a pixel are together
            (torch.channels_last), as our files and kernels have them; `images.contiguous()` copies them to planes.
    targets classes as labels in int64, (samples); numbers or bits in float32, (samples, values).

    dataset     a Dataset, or its name, with `data_dir`.
    batch       samples that each rank gets in a step, as DataLoader's batch_size. The worker's --global_batch is batch
                * world_size. The last batches of an epoch may be smaller and differ by one between ranks, with very
                few samples left even be empty: `global_count` has the samples of all ranks, for an exact mean.
    rank, world_size  which part of each global batch this process gets: no overlap, no padding, no repetition.
    seed        of the order and of the crops: those of the worker with the same seed.
    shuffle     None: yes for training, no for testing.
    augment     "none", or "crop_flip": 4 zeros around the image, cropped to its size at random, flipped by chance.
    epochs      how many will be asked for: no batch is prepared beyond the last. None: no end.
    drop_last   leaves out the last global batch of an epoch if it is smaller.
    threads, prefetch  how many threads fill batches, and how many batches ahead; prefetch=0 fills in the caller's.
    mean, deviation    by channel, in units of pixel / 255. None: the training set's.
    arrays      "torch", or "numpy": arrays, which other libraries take by __dlpack__.
    deadline_s  how long a batch may take.

    Raises StarringError for what the library refuses. One thread at a time iterates. After a fork the loader begins
    anew where it is used.
    """

    def __init__(self, dataset: Dataset | str, batch: int, rank: int = 0, world_size: int = 1, seed: int = 0,
                 split: str = "train", shuffle: bool | None = None, augment: str = "none", epochs: int | None = None,
                 drop_last: bool = False, threads: int = 1, prefetch: int = 3, mean: Sequence[float] | None = None,
                 deviation: Sequence[float] | None = None, arrays: str = "torch", data_dir: str = "",
                 deadline_s: float = 60.0) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset, data_dir)
        self.epoch = 0  # of the next iteration
        self.epochs = epochs
        self.global_count = 0  # samples of all ranks in the step of the last batch
        self._facts = self.dataset.facts(split)
        self._arrays = ARRAYS[_index("arrays", arrays, ARRAYS)]
        self._module = importlib.import_module(arrays)
        self._deadline_s = deadline_s
        if batch < 1 or world_size < 1:
            raise ValueError(f"batch is {batch} and world_size {world_size}: both must be 1 or more")
        channels = ctypes.c_float * self._facts.channels
        for name, values in (("mean", mean), ("deviation", deviation)):
            if values is not None and len(values) != self._facts.channels:
                raise ValueError(f"{name} has {len(values)} values, the images have {self._facts.channels} channels")
        self._options = _LoaderOptions(
            ctypes.sizeof(_LoaderOptions), self.dataset.handle, _index("split", split, SPLITS),
            _index("augment", augment, AUGMENTS), batch * world_size, rank, world_size, seed,
            int(split == "train" if shuffle is None else shuffle), threads, prefetch, 0, 0, _PATIENCE_S,
            channels(*mean) if mean is not None else None, channels(*deviation) if deviation is not None else None)
        self._steps = -(-self._facts.count // (batch * world_size))
        self._batches = self._facts.count // (batch * world_size) if drop_last else self._steps
        self._open: _OpenLoader | None = None
        self._iteration = 0
        self._begin(0)  # refuses options that make no sense, and begins to fill

    def __len__(self) -> int:
        return self._batches

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is `epoch`, for a run that goes on where another one has ended."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, it must be 0 or more")
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tuple[Any, Any]]:
        if self.epochs is not None and self.epoch >= self.epochs:
            raise ValueError(f"epoch {self.epoch} is asked for, the loader was made for epochs={self.epochs}")
        source = self._begin(self.epoch * self._steps)
        self.epoch += 1
        self._iteration += 1
        return self._iterate(source, self._iteration)

    def _begin(self, step: int) -> _OpenLoader:
        """A loader whose next batch is that of `step`: the open one, unless the last epoch was left before its end."""
        source = self._open
        if source is None or source.next_step != step or source.process != os.getpid():
            if source is not None:
                source.close()
            self._options.first_step = step
            self._options.end_step = _ENDLESS if self.epochs is None else max(step, self.epochs * self._steps)
            self._open = source = _OpenLoader(self._options, self._facts)
        return source

    def _iterate(self, source: _OpenLoader, iteration: int) -> Iterator[Tuple[Any, Any]]:
        for _ in range(self._batches):
            if iteration != self._iteration:
                raise RuntimeError("a later iteration of this loader has begun: one at a time can go on")
            # Without a name for it: what this frame keeps would keep the batch while the caller computes.
            yield self._take(source)
        if self._batches < self._steps and iteration == self._iteration:
            source.take(self._deadline_s)

    def _take(self, source: _OpenLoader) -> Tuple[Any, Any]:
        batch, block = source.take(self._deadline_s)
        self.global_count = batch.global_count
        make = _tensors if self._arrays == "torch" else _ndarrays
        return make(self._module, batch, block, self._facts)


def _images_shape(batch: _Batch, facts: Facts) -> Tuple[int, int, int, int]:
    return batch.count, facts.height, facts.width, facts.channels


def _targets(batch: _Batch, facts: Facts) -> Tuple[str, Tuple[int, ...], int]:
    """Type, shape and place in its block of what a batch has besides images."""
    if facts.target == "class":
        return "int64", (batch.count,), batch.labels - batch.memory
    return "float32", (batch.count, facts.target_values), batch.targets - batch.memory


def _tensors(torch: Any, batch: _Batch, block: Any, facts: Facts) -> Tuple[Any, Any]:
    shape = _images_shape(batch, facts)
    target_type, target_shape, offset = _targets(batch, facts)
    dtype = getattr(torch, target_type)
    if batch.count == 0:  # frombuffer takes no empty buffer
        return torch.empty(shape).permute(0, 3, 1, 2), torch.empty(target_shape, dtype=dtype)
    images = torch.frombuffer(block, dtype=torch.float32, count=math.prod(shape), offset=batch.images - batch.memory)
    targets = torch.frombuffer(block, dtype=dtype, count=math.prod(target_shape), offset=offset)
    return images.view(shape).permute(0, 3, 1, 2), targets.view(target_shape)


def _ndarrays(numpy: Any, batch: _Batch, block: Any, facts: Facts) -> Tuple[Any, Any]:
    shape = _images_shape(batch, facts)
    target_type, target_shape, offset = _targets(batch, facts)
    images = numpy.frombuffer(block, numpy.float32, math.prod(shape), batch.images - batch.memory)
    targets = numpy.frombuffer(block, target_type, math.prod(target_shape), offset)
    return images.reshape(shape).transpose(0, 3, 1, 2), targets.reshape(target_shape)
