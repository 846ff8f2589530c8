# SPDX-License-Identifier: Apache-2.0
"""Train an LSTM on text, data-parallel, on any number of ranks; then let it write.

    mpirun -np 2 python examples/lstm.py --data FILE_OR_FOLDER

The network is that of Zaremba et al., 2014 (arXiv:1409.2329): an embedding, layers of LSTM with
dropout between them, and scores of the next token. A layer is a loop in the graph, so its program
is of one size for rows of any length. Text is read as gpt.py reads it.
"""

from __future__ import annotations

import argparse
from typing import Any

import language

from ngd import nn


class LanguageModel(nn.Module):
    """The variables are named as in PyTorch's example of a word language model."""

    def __init__(self, tokens: int, width: int, layers: int, dropout: float) -> None:
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(tokens, width, initializer=nn.initializers.uniform(-0.1, 0.1))
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.decoder = nn.Linear(width, tokens)

    def forward(self, tokens: Any) -> Any:
        """The scores of each place's next token: [batch, places] to [batch, places, tokens]."""
        seen, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(seen))


def make_model(tokens: Any, args: argparse.Namespace) -> LanguageModel:
    """The model that the arguments ask for."""
    if not 0 <= args.dropout < 1:
        raise ValueError(f"--dropout {args.dropout} is not in [0, 1)")
    model = LanguageModel(language.kinds_of(tokens), args.width, args.layers, args.dropout)
    model.initialize(args.seed)
    return model


def main() -> None:
    """Read the command line, and train."""
    parser = language.parser_of(
        __doc__.partition("\n")[0] if __doc__ else None, width=256, layers=2
    )
    parser.add_argument("--dropout", type=float, default=0.0)
    language.run(language.parsed(parser), make_model)


if __name__ == "__main__":
    main()
