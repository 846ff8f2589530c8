# SPDX-License-Identifier: Apache-2.0
"""Train a ResNet on images, data-parallel.

    ngd run -n 2 resnet50.py --data DIR --save checkpoint

DIR has the folders train and val, each with one folder per class. Without --data, the images are
synthetic. The preset large-batch is that of You et al., 2017 (arXiv:1709.05011).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

import ngd
from ngd import checkpoint, data, nn, ops, optim, train

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
NORMALIZE = data.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
he_normal = nn.initializers.he_normal(fan="out")
conv = functools.partial(nn.Conv2d, bias=False, weight_initializer=he_normal)


class Block(nn.Module):
    """Two 3 x 3 convolutions, or a bottleneck of three, with a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int, deep: bool, norm: Any) -> None:
        self.deep, outputs = deep, 4 * width if deep else width
        if deep:
            self.conv1, self.bn1 = conv(inputs, width, 1), norm(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride, 1), norm(width)
            self.conv3, self.bn3 = conv(width, outputs, 1), norm(outputs)
        else:
            self.conv1, self.bn1 = conv(inputs, width, 3, stride, 1), norm(width)
            self.conv2, self.bn2 = conv(width, outputs, 3, 1, 1), norm(outputs)
        shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))
        self.downsample = shortcut if stride > 1 or inputs != outputs else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        if self.deep:
            y = self.bn3(self.conv3(ops.relu(y)))
        return ops.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """He et al., 2015 (arXiv:1512.03385): images [N, 3, H, W] to logits [N, classes]."""

    def __init__(self, depth: int, classes: int, synchronized: bool = False) -> None:
        norm = functools.partial(nn.BatchNorm2d, synchronized=synchronized)
        self.conv1, self.bn1 = conv(3, 64, 7, 2, 3), norm(64)
        self.pool, inputs = nn.MaxPool2d(3, 2, 1), 64
        for stage, num_blocks in enumerate(STAGES[depth]):
            layer, width = nn.Sequential(), 64 * 2**stage
            for number in range(num_blocks):
                stride = 2 if stage and not number else 1
                layer.append(Block(inputs, width, stride, depth >= 50, norm))
                inputs = 4 * width if depth >= 50 else width
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Any) -> Any:
        x = self.pool(ops.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(ops.mean(x, (2, 3)))


def synthetic(count: int, size: int, seed: int) -> data.Arrays:
    """Return images of noise over one pattern per class, and their labels."""
    random = np.random.default_rng((seed, count))
    patterns = np.random.default_rng(0).integers(0, 128, (10, 2, 2, 3), np.uint8)
    labels, half = random.integers(0, 10, count), -(-size // 2)
    images = random.integers(0, 128, (count, size, size, 3), np.uint8)
    images += patterns[labels].repeat(half, 1).repeat(half, 2)[:, :size, :size]
    return data.Arrays(images, labels)


def read_images(args: argparse.Namespace) -> tuple[Any, Any, int, list[Any], list[Any]]:
    """Return the sets for training and test, the number of classes, and the transforms of both."""
    if args.data is None:
        sets = synthetic(args.images, args.size, 1), synthetic(args.images // 4 + 1, args.size, 2)
        return *sets, 10, [data.RandomFlip(), NORMALIZE], [NORMALIZE]
    training, test = (data.ImageFolder(args.data / name) for name in ("train", "val"))
    if training.classes != test.classes:
        raise ValueError(f"--data: {args.data}: train/ and val/ hold different classes")
    augment = [data.RandomResizedCrop(args.size), data.RandomFlip(), NORMALIZE]
    resize = [data.Resize(math.ceil(args.size * 8 / 7)), data.CenterCrop(args.size), NORMALIZE]
    return training, test, len(training.classes), augment, resize


def make_optimizer(epoch: int, args: argparse.Namespace) -> optim.Optimizer:
    """Return the optimizer of the preset. An epoch has `epoch` steps."""
    first = 5 * epoch if args.epochs > 5 else 1  # steps of the warm-up
    rest = max(args.epochs * epoch - first, 1)
    if args.preset == "large-batch":
        rate = optim.polynomial(optim.linear_scaling(0.25, args.batch), rest, power=2)
        vectors = optim.ParameterGroup(optim.is_vector, weight_decay=0.0, adapt=False)
        return optim.LARS(optim.warm_up(rate, first), weight_decay=5e-4, groups=[vectors])
    factors = {rest // 3: 0.1, 2 * rest // 3: 0.1, 8 * rest // 9: 0.1}
    rate = optim.warm_up(optim.steps(optim.linear_scaling(args.lr, args.batch), factors), first)
    vectors = optim.ParameterGroup(optim.is_vector, weight_decay=0.0)
    return optim.SGD(rate, momentum=0.9, weight_decay=1e-4, groups=[vectors])


def make_trainer(args: argparse.Namespace) -> train.Trainer:
    """Return the trainer, which may continue from a checkpoint."""
    with ngd.raise_together():  # one rank may fail to read a file
        training, test, classes, augment, resize = read_images(args)
        model = ResNet(args.depth, classes, args.sync)
        if args.weights:
            model.load_state_dict(checkpoint.read_safetensors(args.weights))
    sampler = data.Sampler(len(training), args.batch, drop_last=True)
    optimizer = make_optimizer(len(sampler), args)

    @ngd.function(updates=True)
    def step(images: Any, labels: Any) -> Any:
        weight = ngd.constant(np.float32(len(labels)))  # the ranks may have different numbers
        with nn.training() as state:
            loss = ops.mean(ops.softmax_cross_entropy(model(images), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return [ops.all_reduce(loss, op="mean", weight=weight)], [updates, state.updates]

    metric = ngd.function(lambda x, y: [ops.mean(ops.cast(model(x).argmax(1) == y, "float32"))])
    test_sampler = data.Sampler(len(test), args.batch, shuffle=False)
    test_loader = data.Loader(test, test_sampler, resize, num_workers=args.workers)
    return train.Trainer(
        step,
        data.Loader(training, sampler, augment, num_workers=args.workers),
        [model.variables(), optimizer.state],
        epochs=args.epochs,
        evaluate=lambda: {"accuracy": train.evaluate(metric, test_loader)[0]},
        model=model,
        save=args.save,
        every=args.every if args.save else None,
        resume=args.resume,
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the report."""
    report = make_trainer(args).run()
    report["images_per_s"] = report.pop("samples_per_s")
    device = os.environ.get("NGD_DEVICE", "CPU")
    return {"ranks": ngd.world_size(), "device": device, "depth": args.depth, **report}


def parse_arguments() -> argparse.Namespace:
    """Read the command line. Settings without an option are here too."""
    parser = argparse.ArgumentParser(description="Train a ResNet on images.")
    parser.set_defaults(depth=50, size=224, images=1024, lr=0.1, workers=2, every=500, sync=False)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="the folders train and val (default: synthetic)")
    add("--epochs", type=int, default=90)
    add("--batch", type=int, default=256, help="images per step, of all ranks together")
    add("--preset", choices=["momentum", "large-batch"], default="momentum")
    add("--weights", type=Path, metavar="FILE", help="weights of torchvision (safetensors)")
    add("--save", type=Path, metavar="DIR", help="write a checkpoint after each epoch")
    add("--resume", action="store_true", help="continue from the checkpoint in --save")
    add("--smoke", action="store_true", help="train a ResNet-18 on tiny images")
    args = parser.parse_args()
    if args.smoke:
        vars(args).update(depth=18, size=32, images=64, batch=16, epochs=2, workers=0, every=3)
    return args


if __name__ == "__main__":
    report = run(parse_arguments())
    if ngd.rank() == 0:
        print(json.dumps(report), flush=True)
