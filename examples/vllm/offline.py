"""Asks a model twice about a text and shows how long each answer took to begin.

python examples/vllm/offline.py MODEL [FILE]
"""

import sys
import time

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig


def main(model: str, file: str = "README.md") -> None:
    llm = LLM(
        model=model,
        enable_prefix_caching=False,  # so that it is Tessera that remembers
        kv_transfer_config=KVTransferConfig(
            kv_connector="TesseraConnector",
            kv_connector_module_path="tessera.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"host_size": "2G"},
        ),
    )
    with open(file) as stream:
        text = stream.read()
    for question in ("What is this?", "Who is it for?"):
        start = time.perf_counter()
        prompt = f"{text}\n\nQuestion: {question}\nAnswer:"
        (output,) = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
        seconds = time.perf_counter() - start
        total = len(output.prompt_token_ids)
        print(f"{question:16} {seconds:.2f} s, {output.num_cached_tokens} of {total} tokens cached")


if __name__ == "__main__":
    main(*sys.argv[1:])
