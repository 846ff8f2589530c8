# SPDX-License-Identifier: Apache-2.0
"""Compare training steps of networks.resnet50 in float32 with PyTorch, in turns.

python benchmarks/models/resnet50.py --threads 2 --peers torch --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "resnet50", batch=16)
