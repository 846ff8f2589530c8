# SPDX-License-Identifier: Apache-2.0
"""Compare training steps of a small network with other frameworks, in turns on the same cores.

python benchmarks/models/mlp.py --hidden 100 --peers torch,jax --peer-python PATH
"""

from __future__ import annotations

from collections.abc import Sequence

from turns import compare, parser_of


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, batch=128, steps=200)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100])
    args = parser.parse_args(argv)
    hidden = [str(n) for n in args.hidden]
    compare(parser, args, "-".join(["784", *hidden, "10"]), "mlp", ["--hidden", *hidden])


if __name__ == "__main__":
    main()
