"""Turns a GGUF file of the llama family into a folder that vLLM reads: float32 safetensors,
config.json, tokenizer. What was quantised stays as exact as the GGUF file is.

    python make_model.py model.gguf folder
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: str, target: str) -> None:
    gguf = Path(source)
    folder = Path(target)
    names = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32)
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    # The output matrix is the embedding's; written once, config.json says so.
    weights = {
        name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**names).save_pretrained(part)
    config = model.config.to_dict()
    for word in ("quantization_config", "_name_or_path"):
        config.pop(word, None)
    config.update(tie_word_embeddings=True, dtype="float32", architectures=["LlamaForCausalLM"])
    (part / "config.json").write_text(json.dumps(config, indent=2, default=str))
    part.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:3])
