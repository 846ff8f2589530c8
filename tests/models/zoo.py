# SPDX-License-Identifier: Apache-2.0
"""Known networks built from ngd.nn. Their variables have the names of torchvision and timm."""

from __future__ import annotations

import functools
from typing import Any

from ngd import Node, nn, ops


def round_to_multiple_of_8(channels: float) -> int:
    """Return the nearest multiple of eight that is at least nine tenths of `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


class SqueezeExcitation(nn.Module):
    """Hu et al., 2018 (arXiv:1709.01507): channels are scaled by functions of their means."""

    def __init__(self, channels: int) -> None:
        inner = round_to_multiple_of_8(channels // 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Node) -> Node:
        inner = ops.relu(self.fc1(self.avgpool(x)))
        return x * ops.hardsigmoid(self.fc2(inner))


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = None
) -> nn.Sequential:
    parts: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    return nn.Sequential(*parts, *([act()] if act else []))


class InvertedResidual(nn.Module):
    def __init__(self, row: tuple[Any, ...], inputs: int) -> None:
        kernel, hidden_width, outputs, squeezed, act, stride = row
        expand = [conv_norm(inputs, hidden_width, 1, act=act)] if hidden_width != inputs else []
        squeeze = [SqueezeExcitation(hidden_width)] if squeezed else []
        depthwise = conv_norm(hidden_width, hidden_width, kernel, stride, hidden_width, act)
        self.block = nn.Sequential(
            *expand, depthwise, *squeeze, conv_norm(hidden_width, outputs, 1)
        )
        self.has_residual = stride == 1 and inputs == outputs

    def forward(self, x: Node) -> Node:
        y: Node = self.block(x)
        return x + y if self.has_residual else y


RE, HS = nn.ReLU, nn.Hardswish
SMALL = [
    (3, 16, 16, True, RE, 2),
    (3, 72, 24, False, RE, 2),
    (3, 88, 24, False, RE, 1),
    (5, 96, 40, True, HS, 2),
    (5, 240, 40, True, HS, 1),
    (5, 240, 40, True, HS, 1),
    (5, 120, 48, True, HS, 1),
    (5, 144, 48, True, HS, 1),
    (5, 288, 96, True, HS, 2),
    (5, 576, 96, True, HS, 1),
    (5, 576, 96, True, HS, 1),
]
"""Per block: kernel size, hidden width, channels, squeeze-and-excitation, activation, stride."""


class MobileNetV3Small(nn.Module):
    """Howard et al., 2019 (arXiv:1905.02244), table 2."""

    def __init__(self, classes: int) -> None:
        inputs = [16, *(row[2] for row in SMALL)]
        blocks = [InvertedResidual(row, n) for row, n in zip(SMALL, inputs, strict=False)]
        ends = conv_norm(3, 16, 3, 2, act=HS), conv_norm(96, 576, 1, act=HS)
        self.features = nn.Sequential(ends[0], *blocks, ends[1])
        self.avgpool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), HS(), nn.Dropout(0.0), nn.Linear(1024, classes)
        )

    def forward(self, x: Node) -> Node:
        made: Node = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return made


class Mlp(nn.Module):
    def __init__(self, layer: Any, width: int) -> None:
        self.fc1, self.act, self.fc2 = layer(width, 4 * width), nn.GELU(), layer(4 * width, width)

    def forward(self, x: Node) -> Node:
        made: Node = self.fc2(self.act(self.fc1(x)))
        return made


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Node) -> Node:
        batch, places, width = x.shape
        parts = self.qkv(x).reshape(batch, places, 3, self.heads, width // self.heads)
        q, k, v = (ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))
        seen = ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3))
        made: Node = self.proj(ops.reshape(seen, x.shape))
        return made


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(nn.Linear, width)

    def forward(self, x: Node) -> Node:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, width: int, patch: int) -> None:
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: Node) -> Node:
        y = self.proj(x)
        return ops.transpose(ops.reshape(y, (*y.shape[:2], -1)), (0, 2, 1))


class ViT(nn.Module):
    """Dosovitskiy et al., 2021 (arXiv:2010.11929). "tiny": Touvron et al. (arXiv:2012.12877)."""

    def __init__(
        self, classes: int, image: int, patch: int = 16, width: int = 192, depth: int = 12
    ) -> None:
        num_positions = (image // patch) ** 2 + 1
        self.cls_token = nn.Parameter((1, 1, width))
        self.pos_embed = nn.Parameter((1, num_positions, width))
        self.patch_embed = Patches(width, patch)
        self.blocks = nn.Sequential(*(Encoder(width, 3) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: Node) -> Node:
        first = ops.broadcast_to(self.cls_token, (x.shape[0], *self.cls_token.shape[1:]))
        y = ops.concat([first, self.patch_embed(x)], 1) + self.pos_embed
        made: Node = self.head(self.norm(self.blocks(y))[:, 0])
        return made


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of [N, C, H, W]."""

    def forward(self, x: Node) -> Node:
        return ops.transpose(super().forward(ops.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        self.gamma = nn.Parameter(width)
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = ChannelNorm(width, eps=1e-6)
        self.mlp = Mlp(functools.partial(nn.Conv2d, kernel_size=1), width)

    def forward(self, x: Node) -> Node:
        return x + self.mlp(self.norm(self.conv_dw(x))) * ops.reshape(self.gamma, (-1, 1, 1))


class Stage(nn.Module):
    def __init__(self, inputs: int, width: int, depth: int) -> None:
        self.downsample: nn.Module = nn.Identity()
        if inputs != width:
            down = nn.Conv2d(inputs, width, 2, 2)
            self.downsample = nn.Sequential(ChannelNorm(inputs, eps=1e-6), down)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))

    def forward(self, x: Node) -> Node:
        made: Node = self.blocks(self.downsample(x))
        return made


class NormHead(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        self.norm, self.fc = ChannelNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, x: Node) -> Node:
        made: Node = self.fc(self.norm(ops.mean(x, (2, 3), keepdims=True))[:, :, 0, 0])
        return made


class ConvNeXt(nn.Module):
    """Liu et al., 2022 (arXiv:2201.03545), in timm's size "atto"."""

    def __init__(self, classes: int) -> None:
        widths, depths = (40, 80, 160, 320), (2, 2, 6, 2)
        self.stem = nn.Sequential(nn.Conv2d(3, 40, 4, 4), ChannelNorm(40, eps=1e-6))
        rows = zip((40, *widths), widths, depths, strict=False)
        self.stages = nn.Sequential(*(Stage(*row) for row in rows))
        self.head = NormHead(320, classes)

    def forward(self, x: Node) -> Node:
        made: Node = self.head(self.stages(self.stem(x)))
        return made


def unet(library: Any, concat: Any, width: int = 8, depth: int = 2) -> Any:
    """Ronneberger et al., 2015 (arXiv:1505.04597), with padding, built from ngd.nn or torch.nn."""

    def two_convolutions(inputs: int, outputs: int) -> Any:
        parts: list[Any] = []
        for n in (inputs, outputs):
            parts.append(library.Conv2d(n, outputs, 3, padding=1, bias=False))
            parts += [library.BatchNorm2d(outputs), library.ReLU()]
        return library.Sequential(*parts)

    class UNet(library.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = [width * 2**level for level in range(depth + 1)]
            self.pool = library.MaxPool2d(2)
            self.down = library.ModuleList(
                two_convolutions(*n) for n in zip([3, *widths], widths, strict=False)
            )
            levels_upward = list(zip(reversed(widths[1:]), reversed(widths[:-1]), strict=True))
            self.up = library.ModuleList(library.ConvTranspose2d(*n, 2, 2) for n in levels_upward)
            self.join = library.ModuleList(two_convolutions(*n) for n in levels_upward)
            self.out = library.Conv2d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            levels = []
            for block in self.down:
                x = block(self.pool(x) if levels else x)
                levels.append(x)
            for up, join, skip in zip(self.up, self.join, reversed(levels[:-1]), strict=True):
                x = join(concat([skip, up(x)], 1))
            return self.out(x)

    return UNet()
