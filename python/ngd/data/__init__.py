# SPDX-License-Identifier: Apache-2.0
"""Data for training: sources of samples, whose turn it is, and processes that load ahead.

    source = data.ImageFolder("imagenet/train")
    sampler = data.Sampler(len(source), batch=256, rank=world.rank, size=world.size, seed=1)
    crop = [data.RandomResizedCrop(224), data.RandomFlip(), data.Normalize(MEAN, STD)]
    with data.Loader(source, sampler, crop, workers=4) as loader:
        for epoch in range(90):
            for (images, labels), weight, total in loader:
                ...
                ngd.checkpoint.save(folder, variables, position=sampler.state())

A source is whatever has a length, and gives for an array of indices a tuple of columns: images,
labels. A transform is a function of such a tuple and of a NumPy generator a sample, which depends
on the seed, the epoch and the sample's index alone. So neither the number of ranks nor that of
processes changes a bit of what is trained on.
"""

from .files import cifar, mnist, read_idx
from .images import CenterCrop, Mixup, Normalize, RandomFlip, RandomResizedCrop, Resize
from .loader import Batch, Loader
from .sampler import Part, Sampler
from .sources import Arrays, ImageFolder, Tokens

__all__ = [
    "Arrays",
    "Batch",
    "CenterCrop",
    "ImageFolder",
    "Loader",
    "Mixup",
    "Normalize",
    "Part",
    "RandomFlip",
    "RandomResizedCrop",
    "Resize",
    "Sampler",
    "Tokens",
    "cifar",
    "mnist",
    "read_idx",
]
