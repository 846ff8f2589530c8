# SPDX-License-Identifier: Apache-2.0
"""Compare training steps of networks.transformer in float32 with PyTorch, in turns.

python benchmarks/models/transformer.py --threads 2 --peers torch --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "transformer", batch=8)
