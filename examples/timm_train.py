# SPDX-License-Identifier: Apache-2.0
"""Train an image model of timm on any number of ranks.

    ngd run -n 2 timm_train.py --model resnet18 --data FOLDER

FOLDER has one subfolder of images per class. Without it, the images are the digits of scikit-learn.
The lines that use ngd are marked. The loader has worker processes.
"""

import argparse
import json
import time

import timm
import torch
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

import ngd
import ngd.torch


def load(folder: str | None, size: int) -> tuple[Dataset, int]:
    """Return a dataset of images [3, size, size] and the number of classes."""
    if folder:
        from torchvision import datasets, transforms

        steps = [transforms.Resize((size, size)), transforms.ToTensor()]
        images = datasets.ImageFolder(folder, transforms.Compose(steps))
        return images, len(images.classes)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    small = (
        torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8).expand(-1, 3, 8, 8) / 8 - 1
    )
    return TensorDataset(interpolate(small, size=(size, size)), torch.tensor(labels)), 10


def main() -> None:
    """Train, test, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet18", help="a name of timm.list_models()")
    parser.add_argument("--data", metavar="FOLDER", help="one subfolder of images per class")
    parser.add_argument("--size", type=int, default=32, help="the height and width of the images")
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=1, help="processes that load images")
    parser.add_argument("--precision", default="float32", help='"bfloat16" on CPUs that have it')
    parser.add_argument("--smoke", action="store_true", help="train on 128 images, for a test")
    args = parser.parse_args()
    dataset, num_classes = load(args.data, args.size)
    if args.smoke:
        args.model, args.epochs, dataset = "test_resnet", 1, Subset(dataset, range(160))
    num_train = len(dataset) * 4 // 5
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    train, test = Subset(dataset, order[:num_train]), Subset(dataset, order[num_train:])

    torch.manual_seed(0)
    model = timm.create_model(args.model, num_classes=num_classes)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    step = ngd.torch.compile_step(  # instead of DistributedDataParallel
        model, lambda model, x, y: cross_entropy(model(x), y), optimizer, precision=args.precision
    )
    rank, size = ngd.rank(), ngd.world_size()
    sampler = DistributedSampler(train, size, rank)
    loader = DataLoader(
        train, args.batch, sampler=sampler, num_workers=args.workers, drop_last=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(loader))
    start = time.perf_counter()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = step(x, y)  # instead of backward() and optimizer.step()
            schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}")
    seconds = time.perf_counter() - start
    if rank == 0:
        model.eval()
        with torch.no_grad():
            is_correct = [(model(x).argmax(1) == y) for x, y in DataLoader(test, 100)]
        accuracy = round(torch.cat(is_correct).float().mean().item(), 4)
        speed = round(args.epochs * len(loader) * args.batch * size / seconds)
        report = {"model": args.model, "loss": round(loss.item(), 4), "accuracy": accuracy}
        print(json.dumps({"ranks": size, **report, "images_per_s": speed}), flush=True)


if __name__ == "__main__":
    main()
