# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks.transformer, f32: ngd beside PyTorch, in turns, on the same cores.

python benchmarks/models/transformer.py --threads 2 --peers torch --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "transformer", batch=8)
