# SPDX-License-Identifier: Apache-2.0
"""Train a ResNet on images, data-parallel, on any number of ranks.

    mpirun -np 2 python examples/resnet50.py --data DIR --workers 2

DIR holds train/ and val/, each with a folder a class; without it the images are synthetic. The
variables have torchvision's names, whose weights --weights takes. --preset large-batch is made as
You et al., 2017 (arXiv:1709.05011) do: LARS, a rate in proportion to the batch, some epochs of
warm-up, a decay by the second power.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from low_level_mnist import all_or_none

import ngd
from ngd import data, nn, ops, optim

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
SYNTHETIC_CLASSES = 10
WARM_UP_EPOCHS = 5
he_normal = nn.initializers.he_normal(fan="out")


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that is followed by a normalization."""
    return nn.Conv2d(
        inputs, outputs, kernel, stride, kernel // 2, bias=False, weight_initializer=he_normal
    )


class Block(nn.Module):
    """Two convolutions of 3 x 3, or three of 1, 3 and 1, beside a way around them."""

    def __init__(self, inputs: int, width: int, stride: int, deep: bool, norm: Any) -> None:
        self.deep, outputs = deep, 4 * width if deep else width
        if deep:
            self.conv1, self.bn1 = conv(inputs, width, 1), norm(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride), norm(width)
            self.conv3, self.bn3 = conv(width, outputs, 1), norm(outputs)
        else:
            self.conv1, self.bn1 = conv(inputs, width, 3, stride), norm(width)
            self.conv2, self.bn2 = conv(width, outputs, 3), norm(outputs)
        self.downsample: Any = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            y = self.bn3(self.conv3(ops.relu(y)))
        return ops.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """He et al., 2015 (arXiv:1512.03385); the stride stands in the convolution of 3 x 3."""

    def __init__(self, depth: int, classes: int, synchronized: bool = False) -> None:
        norm = functools.partial(nn.BatchNorm2d, synchronized=synchronized)
        self.conv1, self.bn1 = conv(3, 64, 7, 2), norm(64)
        self.pool, inputs = nn.MaxPool2d(3, 2, 1), 64
        for stage, blocks in enumerate(STAGES[depth]):
            layer, width = nn.Sequential(), 64 * 2**stage
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                layer.append(Block(inputs, width, stride, depth >= 50, norm))
                inputs = 4 * width if depth >= 50 else width
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Any) -> Any:
        """The classes' scores: [N, 3, H, W] to [N, classes]."""
        x = self.pool(ops.relu(self.bn1(self.conv1(images))))
        for stage in range(len(STAGES[18])):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(ops.mean(x, (2, 3)))


def synthetic(count: int, size: int, seed: int) -> data.Arrays:
    """Noise over a pattern that tells the class."""
    random = np.random.default_rng((seed, count))
    patterns = np.random.default_rng(0).integers(0, 128, (SYNTHETIC_CLASSES, 2, 2, 3), np.uint8)
    labels = random.integers(0, SYNTHETIC_CLASSES, count)
    images = random.integers(0, 128, (count, size, size, 3), np.uint8)
    half = -(-size // 2)
    for image, label in zip(images, labels, strict=True):
        image += patterns[label].repeat(half, 0).repeat(half, 1)[:size, :size]
    return data.Arrays(images, labels)


def read_images(args: argparse.Namespace) -> tuple[Any, Any, int, list[Any], list[Any]]:
    """Training and test set, how many classes, and what is done to the images of either."""
    normalize = data.Normalize(MEAN, STD)
    if args.data is None:
        sets = synthetic(args.images, args.size, 1), synthetic(args.images // 4 + 1, args.size, 2)
        return *sets, SYNTHETIC_CLASSES, [data.RandomFlip(), normalize], [normalize]
    train, test = (data.ImageFolder(args.data / name) for name in ("train", "val"))
    if train.classes != test.classes:
        raise ValueError(f"--data: {args.data}: train/ and val/ hold different classes")
    grow = [data.RandomResizedCrop(args.size), data.RandomFlip(), normalize]
    fit = [data.Resize(math.ceil(args.size * 8 / 7)), data.CenterCrop(args.size), normalize]
    return train, test, len(train.classes), grow, fit


def make_optimizer(steps: int, args: argparse.Namespace) -> optim.Optimizer:
    """Momentum with a rate that falls in three steps, or the large-batch preset."""
    scale = optim.LossScale() if args.precision == "float16" else None
    epoch = max(steps // max(args.epochs, 1), 1)
    warming = WARM_UP_EPOCHS * epoch if args.epochs > WARM_UP_EPOCHS else 1
    rest = max(steps - warming, 1)
    if args.preset == "large-batch":
        rate = optim.linear_scaling(args.lr or 0.25, args.batch)
        falling = optim.polynomial(rate, rest, power=2)
        still = optim.ParameterGroup(optim.is_vector, weight_decay=0.0, adapt=False)
        schedule = optim.warm_up(falling, warming)
        return optim.LARS(
            schedule, weight_decay=5e-4, trust_coefficient=0.001, groups=[still], loss_scale=scale
        )
    rate = optim.linear_scaling(args.lr or 0.1, args.batch)
    falling = optim.steps(rate, {int(rest * part): 0.1 for part in (1 / 3, 2 / 3, 8 / 9)})
    still = optim.ParameterGroup(optim.is_vector, weight_decay=0.0)
    schedule = optim.warm_up(falling, warming)
    return optim.SGD(schedule, momentum=0.9, weight_decay=1e-4, groups=[still], loss_scale=scale)


class Training:
    """The compiled steps, and where the training stands."""

    def __init__(self, args: argparse.Namespace, world: Any) -> None:
        self.args, self.world = args, world
        train, self.test, classes, grow, self.fit = read_images(args)
        self.sampler = data.Sampler(
            len(train), batch_size=args.batch, seed=args.seed, drop_last=True
        )
        self.loader = data.Loader(train, self.sampler, grow, num_workers=args.workers)
        self.model = ResNet(args.depth, classes, args.synchronized).astype(args.dtype)
        self.model.initialize(args.seed)
        if args.weights:
            self.model.load_state_dict(ngd.checkpoint.read_safetensors(args.weights))
        self.optimizer = make_optimizer(args.epochs * len(self.sampler), args)

        images, labels = self.inputs(len(self.sampler.shard(0).indices))
        weight = ngd.constant(np.array(images.shape[0], args.dtype))  # the ranks may differ
        with nn.training() as state:
            scores = self.model(images)
            loss = ops.mean(ops.softmax_cross_entropy(scores, labels))
        updates = self.optimizer.minimize(loss, self.model.parameters(), weight=weight)
        mean = ops.all_reduce(loss, op="mean", weight=weight)
        updates = [updates, state.updates]
        how = {"device": args.device, "precision": args.precision, "shard": args.shard}
        self.step = ngd.compile([images, labels], [mean], updates, **how)
        self.judge = functools.cache(self.compile_judge)
        self.state = [self.model.variables(), self.optimizer.state]
        if args.resume:
            private = self.model.buffers()
            position = ngd.checkpoint.load(args.resume, self.state, private=private)
            self.sampler.load_state(position)

    def inputs(self, count: int) -> list[Any]:
        """Placeholders for so many images."""
        size = self.args.size
        images = ngd.placeholder("images", (count, 3, size, size), self.args.dtype)
        return [images, ngd.placeholder("labels", (count,), "int64")]

    def compile_judge(self, count: int) -> Any:
        """Build how many of so many images are right."""
        images, labels = self.inputs(count)
        right = ops.argmax(self.model(images), axis=1) == labels
        return ngd.compile(
            [images, labels], [ops.sum(ops.cast(right, "int64"))], device=self.args.device
        )

    def run(self) -> tuple[float | None, float | None, float | None]:
        """Train; the mean loss of the last steps, the accuracy, and images a second."""
        from tqdm import tqdm

        losses: list[float] = []
        seconds, before, accuracy, args = 0.0, self.sampler.done, None, self.args
        while self.sampler.epoch < args.epochs and self.sampler.done < args.steps:
            start = time.perf_counter()
            epoch = f"epoch {self.sampler.epoch + 1}"
            with tqdm(self.loader, epoch, disable=self.world.rank != 0) as bar:
                for batch in bar:
                    assert batch.weight == len(batch[0])  # the weight that the step has
                    (loss,) = self.step(*batch)
                    losses = [*losses[-49:], float(loss)]
                    bar.set_postfix_str(f"loss {losses[-1]:.3f}")
                    if args.save and self.sampler.done % args.every == 0:
                        self.save()
                    if self.sampler.done == args.steps:
                        break
            seconds += time.perf_counter() - start
            accuracy = self.evaluate()
        self.loader.close()
        if not losses:
            return None, self.evaluate(), None
        return float(np.mean(losses)), accuracy, (self.sampler.done - before) * args.batch / seconds

    def evaluate(self) -> float:
        """The accuracy on the test set, of which each rank judges its part.

        Running statistics that each rank has of its own have their mean meanwhile.
        """
        own = not self.args.synchronized
        with self.model.averaged_buffers() if own else contextlib.nullcontext():
            return float(ngd.all_reduce(np.array(self.right()), op="sum")) / len(self.test)

    def right(self) -> int:
        """How many samples of this rank's part are judged right."""
        sampler = data.Sampler(len(self.test), batch_size=self.args.batch, shuffle=False)
        right = 0
        with data.Loader(self.test, sampler, self.fit, num_workers=self.args.workers) as loader:
            for batch in loader:
                (found,) = self.judge(len(batch[1]))(*batch)
                right += int(found) if batch.weight else 0
        return right

    def save(self) -> None:
        """Rank 0 replaces the checkpoint, which keeps the running statistics of every rank."""
        private, position = self.model.buffers(), self.sampler.state()
        ngd.checkpoint.save(self.args.save, self.state, private=private, position=position)


def check(args: argparse.Namespace, world: Any) -> None:
    """Refuse what cannot work, before anything is loaded."""
    for name, least in (("epochs", 0), ("workers", 0), ("seed", 0), ("steps", 0), ("every", 1)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: at least {least} is needed")
    images = args.batch if args.data is None else 0
    for name, least in (("batch", world.size), ("images", images), ("size", 32)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: at least {least} is needed")
    if args.lr is not None and not 0 < args.lr < math.inf:
        raise ValueError(f"--lr {args.lr} is not a positive number")
    if args.save and args.save.exists() and not args.save.is_dir():
        raise ValueError(f"--save: {args.save} is not a directory")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="train/ and val/, with a folder a class each")
    add("--depth", type=int, choices=STAGES, default=50)
    add("--size", type=int, default=224, help="pixels of a side")
    add("--images", type=int, default=1024, help="how many there are, if they are synthetic")
    add("--epochs", type=int, default=90)
    add("--steps", type=int, default=2**62, help="stop after so many")
    add("--batch", type=int, default=256, help="images a step, of all ranks together")
    add("--lr", type=float, help="for 256 images a step (default: 0.1, or the preset's 0.25)")
    add("--preset", choices=["momentum", "large-batch"], default="momentum")
    add("--synchronized", action="store_true", help="normalize over the batch of all ranks")
    add("--workers", type=int, default=0, help="processes a rank that load images")
    add("--seed", type=int, default=0)
    add("--dtype", choices=["float32", "float64"], default="float32")
    precisions = ["float32", "bfloat16", "float16"]
    add("--precision", choices=precisions, default="float32", help="of training")
    add("--shard", choices=["none", "host"], default="none", help="host: weights once a host")
    add("--device", choices=["CPU", "INTERPRETER"], default="CPU")
    add("--weights", type=Path, metavar="FILE", help="torchvision's weights (safetensors)")
    add("--save", type=Path, metavar="DIR", help="where checkpoints go")
    add("--every", type=int, default=500, help="steps between two checkpoints")
    add("--resume", type=Path, metavar="DIR", help="the checkpoint to go on from")
    add("--smoke", action="store_true", help="a small model for some steps: does it run?")
    args = parser.parse_args()
    if args.smoke:
        args.depth, args.size, args.images, args.batch, args.epochs = 18, 32, 64, 16, 2
        args.every = 3
    return args


def main() -> None:
    """Train, evaluate, and report as one line of JSON."""
    args = parse_arguments()
    world = ngd.init()
    with all_or_none(world):
        check(args, world)
        training = Training(args, world)
    loss, accuracy, images_per_s = training.run()
    if args.save:
        training.save()
    if world.rank == 0:
        report = {
            "ranks": world.size,
            "device": args.device,
            "depth": args.depth,
            "steps": training.sampler.done,
            "loss": loss,
            "accuracy": accuracy,
            "images_per_s": images_per_s,
        }
        print(json.dumps(report), flush=True)
    ngd.barrier()


if __name__ == "__main__":
    main()
