"""Asks a model two questions about a text and prints the time of each answer.

python examples/vllm/offline.py MODEL [FILE] [--eager]

The second question reuses the text that the first has computed. With --eager vLLM does not compile
the model, which on a CPU takes longer than the answers.
"""

import argparse
import time

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig


def main(model: str, file: str, eager: bool) -> None:
    llm = LLM(
        model=model,
        enforce_eager=eager,
        enable_prefix_caching=False,  # so that hits come from Tessera
        max_model_len=8192,
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
    # A prompt is saved while its answer is generated.
    params = SamplingParams(temperature=0, max_tokens=16)
    for question in ("What is this?", "Who is it for?"):
        start = time.perf_counter()
        prompt = f"{text}\n\nQuestion: {question}\nAnswer:"
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        total = len(output.prompt_token_ids)
        answer = " ".join(output.outputs[0].text.split())
        print(f"{question} {answer}")
        print(f"    {seconds:.2f} s, {output.num_cached_tokens} of {total} tokens were cached")


if __name__ == "__main__":
    # vLLM starts processes that import this file again.
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("file", nargs="?", default="README.md")
    parser.add_argument("--eager", action="store_true")
    main(**vars(parser.parse_args()))
