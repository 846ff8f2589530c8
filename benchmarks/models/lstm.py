# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks.lstm, f32: ngd beside PyTorch, in turns, on the same cores.

python benchmarks/models/lstm.py --threads 2 --peers torch,torch-compile --peer-python PATH
"""

from turns import compare_network

if __name__ == "__main__":
    compare_network(__doc__, "lstm", batch=32)
