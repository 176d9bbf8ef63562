"""An engine as an operator has it: front end, scheduler and worker in three processes. Reads an
order as JSON, prints the answers as a line RESULT and JSON."""

import json
import os
import sys

import engines

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


def main() -> None:
    order = json.load(sys.stdin)
    with engines.Engine(order["options"], max_model_len=1024) as engine:
        answers = engine.ask(order["prompts"], order["max_tokens"])
    rows = [{"tokens": a.tokens, "cached": a.cached, "logprobs": a.logprobs} for a in answers]
    print("RESULT " + json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
