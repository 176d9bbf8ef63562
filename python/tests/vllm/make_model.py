"""Turns a GGUF file of the llama or qwen2 family into a folder that vLLM reads: safetensors,
config.json, tokenizer. Weights that were quantised stay as exact as the GGUF file in float32.

    python make_model.py model.gguf folder [float32|bfloat16]
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: str, target: str, dtype: str = "float32") -> None:
    gguf = Path(source)
    folder = Path(target)
    names = dict(pretrained_model_name_or_path=str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(**names, dtype=getattr(torch, dtype))
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    # An output matrix that is the embedding's is written once, and config.json says so.
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = torch.equal(output.weight, embedding.weight)
    if tied:
        del weights["lm_head.weight"]
    save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**names).save_pretrained(part)
    config = model.config.to_dict()
    for word in ("quantization_config", "_name_or_path"):
        config.pop(word, None)
    config.update(tie_word_embeddings=tied, dtype=dtype, architectures=[type(model).__name__])
    (part / "config.json").write_text(json.dumps(config, indent=2, default=str))
    part.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:4])
