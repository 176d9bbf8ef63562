#!/usr/bin/env python3
"""Writes rope.txt: frequencies and rotated vectors from an independent implementation.

The frequencies come from ROPE_INIT_FUNCTIONS of Hugging Face transformers (which computes them in
float32), the rotations from its apply_rotary_pos_emb of the llama (neox pairing) and gptj models,
run in float64 on those frequencies. Made with transformers 5.22.2 and torch 2.15.0:

    pip install torch transformers && python3 tests/golden/make_rope.py > tests/golden/rope.txt

One case is six lines: its parameters, the attention factor, the frequencies, a vector k, and k
rotated at two positions. Numbers are hexadecimal floats.
"""
import re

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_neox

SHORT = [1.0 + 0.05 * i for i in range(24)]
LONG = [1.0 + 0.4 * i for i in range(24)]

# name, head dim, rotated fraction, theta, prompt length, positions of the configuration, parameters
CASES = [
    ("plain", 64, 1.0, 10000.0, 100, 2048, {}),
    ("plain", 128, 1.0, 500000.0, 100, 8192, {}),
    ("plain", 80, 0.4, 10000.0, 100, 2048, {}),
    ("linear", 128, 1.0, 10000.0, 100, 4096, {"factor": 4.0}),
    ("dynamic", 64, 1.0, 10000.0, 100, 2048, {"factor": 2.0}),
    ("dynamic", 64, 1.0, 10000.0, 3000, 2048, {"factor": 2.0}),
    ("dynamic", 64, 1.0, 10000.0, 8192, 2048, {"factor": 4.0}),
    ("yarn", 128, 1.0, 1000000.0, 100, 131072,
     {"factor": 4.0, "original_max_position_embeddings": 32768}),
    ("yarn", 64, 1.0, 10000.0, 100, 163840,
     {"factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 1.0}),
    ("yarn", 64, 1.0, 150000.0, 100, 131072,
     {"factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "truncate": False}),
    ("yarn", 96, 1.0, 10000.0, 100, 32768,
     {"factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 0.75}),
    ("llama3", 128, 1.0, 500000.0, 100, 131072,
     {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}),
    ("llama3", 64, 1.0, 500000.0, 100, 131072,
     {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}),
    ("longrope", 48, 1.0, 10000.0, 100, 131072,
     {"factor": 32.0, "original_max_position_embeddings": 4096, "short_factor": SHORT,
      "long_factor": LONG}),
    ("longrope", 48, 1.0, 10000.0, 5000, 131072,
     {"factor": 32.0, "original_max_position_embeddings": 4096, "short_factor": SHORT,
      "long_factor": LONG}),
]
POSITIONS = (37, 1234)


def frequencies(name, head_dim, fraction, theta, n_tokens, positions, params):
    rope = dict(params, rope_type="default" if name == "plain" else name, rope_theta=theta,
                partial_rotary_factor=fraction)
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=positions, rope_parameters=rope)
    if name == "plain":
        return GlmRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"), seq_len=n_tokens)


def rotated(pairing, k, freq, scale, position):
    """k at a position: partial rotation leaves the elements behind the rotated ones alone."""
    dims = 2 * len(freq)
    angles = position * freq.double()
    head, rest = k[:dims], k[dims:]
    if pairing == "neox":
        angles = torch.cat((angles, angles))[None, None, :]
        part, _ = apply_neox(head[None, None, None, :], head[None, None, None, :],
                             angles.cos() * scale, angles.sin() * scale)
    else:
        angles = angles[None, None, :]
        part = apply_gptj(head[None, None, None, :], angles.sin() * scale, angles.cos() * scale)
    return torch.cat((part.flatten(), rest))


def line(values):
    """Rounded to float32, without the zeros at the end."""
    texts = (float(torch.as_tensor(v).float()).hex() for v in values)
    return " ".join(re.sub(r"\.?0+p", "p", text) if "." in text else text for text in texts)


def main():
    generator = torch.Generator().manual_seed(1)
    print("# made by make_rope.py")
    for case in CASES:
        name, head_dim, fraction, theta, n_tokens, positions, params = case
        freq, scale = frequencies(*case)
        # The pairing does not change frequencies: both for three cases, neox for the others.
        for pairing in ("neox", "gptj") if name == "plain" else ("neox",):
            trained = params.get("original_max_position_embeddings", positions)
            fields = [name, pairing, head_dim, 2 * len(freq), trained, n_tokens, theta]
            fields += [params.get(f, 0) for f in ("factor", "attention_factor", "beta_fast",
                                                  "beta_slow", "mscale", "mscale_all_dim",
                                                  "low_freq_factor", "high_freq_factor")]
            fields += [0 if params.get("truncate", True) else 1]
            print("case", *fields, *POSITIONS)
            print(line([scale]))
            print(line(freq))
            k = torch.randn(head_dim, generator=generator, dtype=torch.float64).float().double()
            print(line(k))
            for position in POSITIONS:
                print(line(rotated(pairing, k, freq, scale, position)))


if __name__ == "__main__":
    main()
