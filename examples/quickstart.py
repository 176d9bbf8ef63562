"""Store the KV of a document, then find it in the middle of another prompt: hello.c in Python.

    pip install tessera-kv
    python3 quickstart.py

KV may be a numpy array, a torch tensor or, as here, any buffer: [layer][K, V][token][head x dim].
"""

import tessera


def kv(tokens: int) -> memoryview:
    """KV of zeros for two layers, one head of eight floats."""
    return memoryview(bytearray(2 * 2 * tokens * 8 * 4)).cast("f", shape=[2, 2, tokens, 8])


document = [11, 12, 13, 14]
prompt = [1, 2, 11, 12, 13, 14, 3]
computed = kv(len(document))
computed[0, 0, 0, 0] = 0.5

with tessera.Cache(host_size="64M") as cache:
    space = cache.space("tiny", "f32", n_layers=2, n_heads=1, k_dim=8)
    space.store(document, computed, kind="segment")

    found = space.lookup(prompt, segments=[(2, 4)])  # offset and length of a document in the prompt
    back = kv(len(prompt))
    loaded = space.load(found, back, prefix_only=False)
    print(f"{loaded} of {len(prompt)} tokens from the cache, K[0] = {back[0, 0, 2, 0]}")
