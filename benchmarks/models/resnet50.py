# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks.resnet50, f32: ngd beside PyTorch, in turns, on the same cores.

python benchmarks/models/resnet50.py --threads 2 --peers torch --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "resnet50", batch=16)
