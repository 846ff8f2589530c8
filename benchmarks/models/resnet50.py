# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks.resnet50, f32: ngd beside PyTorch, in turns, on the same cores.

python benchmarks/models/resnet50.py --threads 2 --peers torch,torch-compile --peer-python PATH
"""

from __future__ import annotations

from collections.abc import Sequence

from turns import compare, parser_of


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, batch=16, steps=1)
    args = parser.parse_args(argv)
    compare(parser, args, "resnet50", "network", ["--network", "resnet50", "--warm-up", "3"])


if __name__ == "__main__":
    main()
