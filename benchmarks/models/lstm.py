# SPDX-License-Identifier: Apache-2.0
"""Compare training steps of networks.lstm in float32 with PyTorch, in turns on the same cores.

python benchmarks/models/lstm.py --threads 2 --peers torch,torch-compile --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "lstm", batch=32)
