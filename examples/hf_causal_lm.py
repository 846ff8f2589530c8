# SPDX-License-Identifier: Apache-2.0
"""Train a causal language model of Hugging Face on the text files of a folder.

    ngd run -n 2 hf_causal_lm.py --data FOLDER --architecture llama

The tokenizer is trained on the text. Without --data, the text is the source of Python's standard
library. The lines that use ngd are marked.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import ngd
import ngd.torch

WIDTHS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDTHS |= {"intermediate_size": 128, "num_key_value_heads": 2}


def read(folder: str | None) -> str:
    """Return the text of all files of a folder."""
    files = sorted(Path(folder).rglob("*.txt")) if folder else [Path(statistics.__file__)]
    if not files:
        raise SystemExit(f"--data: expected a folder with .txt files; got {folder}")
    return "\n".join(file.read_text() for file in files)


def make_model(architecture: str, vocab_size: int, length: int) -> torch.nn.Module:
    """Return a small model of an architecture, with random weights."""
    config = AutoConfig.for_model(architecture)
    names = {name: value for name, value in WIDTHS.items() if hasattr(config, name)}
    config.update({**names, "vocab_size": vocab_size, "max_position_embeddings": length})
    config.update({"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "use_cache": False})
    return AutoModelForCausalLM.from_config(config)


def main() -> None:
    """Train, generate some text, and report as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", metavar="FOLDER", help="text files (*.txt)")
    parser.add_argument("--architecture", default="gpt2", help="a model type of transformers")
    parser.add_argument("--vocab-size", type=int, default=1000)
    parser.add_argument("--length", type=int, default=64, help="tokens per sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--save", metavar="FILE", help="a checkpoint, to which --resume returns")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--smoke", action="store_true", help="train for 20 steps, for a test")
    args = parser.parse_args()
    steps = 20 if args.smoke else args.steps
    text = read(args.data)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], args.vocab_size, show_progress=False)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    rows = tokens[: len(tokens) // args.length * args.length].view(-1, args.length)

    torch.manual_seed(0)
    model = make_model(args.architecture, tokenizer.get_vocab_size(), args.length)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step = ngd.torch.compile_step(  # instead of DistributedDataParallel
        model, lambda model, rows: model(rows, labels=rows).loss, optimizer, clip_norm=1.0
    )
    rank, size = ngd.rank(), ngd.world_size()
    first = 0
    if args.resume and args.save and Path(args.save).exists():
        saved = torch.load(args.save, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["step"]
    start, losses = time.perf_counter(), []
    for number in range(first, steps):
        generator = torch.Generator().manual_seed(number)
        indices = torch.randperm(len(rows), generator=generator)[: args.batch * size]
        losses.append(step(rows[indices[rank::size]]))  # instead of backward() and step()
        schedule.step()
        if rank == 0 and number % 20 == 0:
            print(f"step {number}: loss {losses[-1]:.4f}")
    seconds = time.perf_counter() - start
    if rank == 0 and args.save:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "schedule": schedule.state_dict(), "step": steps}, args.save)
    if rank == 0:
        model.eval()
        prompt = tokens[None, : args.length // 4]
        generated = model.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=0)
        print(tokenizer.decode(generated[0].tolist()))
        report = {"loss": round(losses[-1].item(), 4) if losses else None, "steps": steps}
        speed = round(len(losses) * args.batch * size * args.length / seconds)
        print(json.dumps({"ranks": size, **report, "tokens_per_s": speed}), flush=True)


if __name__ == "__main__":
    main()
