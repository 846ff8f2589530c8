# SPDX-License-Identifier: Apache-2.0
"""Data loading: sources of samples, samplers, transforms, and loaders that prefetch batches.

    source = data.ImageFolder("imagenet/train")
    sampler = data.Sampler(len(source), batch_size=256, seed=1)
    transform = [data.RandomResizedCrop(224), data.RandomFlip(), data.Normalize(MEAN, STD)]
    with data.Loader(source, sampler, transform, num_workers=4) as loader:
        for epoch in range(90):
            for images, labels in loader:
                ...
                ngd.checkpoint.save(folder, variables, position=sampler.state())

A source has a length. Indexed with an array of indices it returns a tuple of columns, for example
images and labels. A transform is a function of the columns and of one NumPy generator per sample.
The generator depends only on the seed, the epoch and the index of the sample. So the training data
are bitwise equal for any number of ranks and workers.
"""

from .._util.signature_errors import check_public_names as _check_public_names
from .files import cifar, mnist, read_idx
from .images import CenterCrop, Mixup, Normalize, RandomFlip, RandomResizedCrop, Resize
from .loader import Batch, Loader
from .sampler import Sampler, Shard
from .sources import Arrays, ImageFolder, Tokens

__all__ = [
    "Arrays",
    "Batch",
    "CenterCrop",
    "ImageFolder",
    "Loader",
    "Mixup",
    "Normalize",
    "RandomFlip",
    "RandomResizedCrop",
    "Resize",
    "Sampler",
    "Shard",
    "Tokens",
    "cifar",
    "mnist",
    "read_idx",
]

_check_public_names(globals())
