# SPDX-License-Identifier: Apache-2.0
"""Networks that can be built from ngd.nn or torch.nn, given as `library`.

A case has the function that builds a network, and the shapes and class counts of its data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 6, 384, 6, 256, 8192
STATES, PLACES = 512, 64


class Case(NamedTuple):
    make: Callable[[Any, Any], Any]
    """A function of a library and its attention that returns a network."""
    sample: tuple[int, ...]
    tokens: int
    """The vocabulary size of the samples, or 0 if they are float32."""
    labels: tuple[int, ...]
    classes: int
    optimizer: str


def bottleneck(nn: Any, inputs: int, inner: int, stride: int) -> Any:
    """He et al., 2016 (arXiv:1512.03385), figure 5, with the stride in the middle convolution."""
    outputs = 4 * inner

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
            self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
            self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(inner)
            self.bn3, self.relu = nn.BatchNorm2d(outputs), nn.ReLU()
            self.downsample = nn.Identity()
            if stride != 1 or inputs != outputs:
                around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.downsample = nn.Sequential(around, nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.relu(self.bn2(self.conv2(y)))
            return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))

    return Bottleneck()


def resnet50(nn: Any, attention: Any) -> Any:
    """He et al., 2016 (arXiv:1512.03385), table 1."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers, inputs = [*stem, nn.MaxPool2d(3, 2, 1)], 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(bottleneck(nn, inputs, inner, stride if block == 0 else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def transformer(nn: Any, attention: Any) -> Any:
    """Six layers of Radford et al., 2019, on sequences of 256 tokens."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.gelu = nn.GELU(approximate="tanh")

        def forward(self, x: Any) -> Any:
            rows = x.shape[0]
            parts = self.qkv(self.norm1(x)).reshape((rows, CONTEXT, 3, HEADS, WIDTH // HEADS))
            q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
            seen = attention(q, k, v).swapaxes(1, 2).reshape((rows, CONTEXT, WIDTH))
            x = x + self.out(seen)
            return x + self.down(self.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.tokens(x) + self.places.weight
            return self.head(self.norm(self.blocks(y)))

    return Transformer()


def lstm(nn: Any, attention: Any) -> Any:
    """Two layers of Zaremba et al., 2014 (arXiv:1409.2329), without dropout."""

    class LanguageModel(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, STATES)
            self.layers = nn.LSTM(STATES, STATES, 2, batch_first=True)
            self.head = nn.Linear(STATES, VOCABULARY)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.tokens(x))[0])

    return LanguageModel()


CASES = {
    "resnet50": Case(resnet50, (3, 224, 224), 0, (), 1000, "sgd"),
    "transformer": Case(transformer, (CONTEXT,), VOCABULARY, (CONTEXT,), VOCABULARY, "adamw"),
    "lstm": Case(lstm, (PLACES,), VOCABULARY, (PLACES,), VOCABULARY, "sgd"),
}
