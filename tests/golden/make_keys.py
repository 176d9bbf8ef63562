#!/usr/bin/env python3
"""Writes keys.txt: keys and digests made from docs/format.md alone, by hashlib and xxhash.

Nothing here is shared with the C code, so a change of either side shows. Needs the xxhash package
from PyPI (pip install xxhash); the tests need only keys.txt, which is committed.

    python3 tests/golden/make_keys.py > tests/golden/keys.txt
"""

import hashlib
import struct

import xxhash

ADAPTER, SALT, MEDIA = 1, 2, 3


def tokens_of(n: int, seed: int) -> list[int]:
    """The tokens of a vector: i * 2654435761 + seed, modulo 2^32."""
    return [(i * 2654435761 + seed) & 0xFFFFFFFF for i in range(n)]


def pack_tokens(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def xxh3(data: bytes) -> bytes:
    """XXH3-128 as key bytes: the low half, then the high half, little-endian."""
    value = xxhash.xxh3_128_intdigest(data)
    return value.to_bytes(16, "little")


def key(kind: int, n: int, space: bytes, digest: bytes, extra: bytes, tokens: bytes) -> bytes:
    return xxh3(b"tsr.key\x01" + struct.pack("<II", kind, n) + space + digest + extra + tokens)


def extra_encode(items: list[tuple], offset: int, n: int) -> bytes:
    """items: (kind, offset, n_tokens, data)."""
    kept = []
    for kind, at, count, data in items:
        if kind == MEDIA and not (at < offset + n and offset < at + count):
            continue
        kept.append((kind, at, count, len(data), data))
    if not kept:
        return b""
    out = b"\x01"
    for kind, at, count, size, data in sorted(kept):
        out += struct.pack("<BH", kind, size)
        if kind == MEDIA:
            out += struct.pack("<iI", at - offset, count)
        out += data
    return out


def extra_hash(encoded: bytes) -> bytes:
    return xxh3(encoded) if encoded else bytes(16)


def root(hash_name: str) -> bytes:
    label = b"tsr.top\x01"
    return hashlib.sha256(label).digest() if hash_name == "sha256" else xxh3(label) + bytes(16)


def block(hash_name: str, parent: bytes, tokens: list[int], extra: bytes) -> bytes:
    head = b"tsr.blk\x01" + parent + struct.pack("<II", len(tokens), len(extra))
    if hash_name == "sha256":
        return hashlib.sha256(head + extra + pack_tokens(tokens)).digest()
    return xxh3(head + extra_hash(extra) + xxh3(pack_tokens(tokens))) + bytes(16)


def context(hash_name: str, tokens: list[int]) -> bytes:
    if not tokens:
        return bytes(32)
    head = b"tsr.ctx\x01" + struct.pack("<I", len(tokens))
    if hash_name == "sha256":
        return hashlib.sha256(head + pack_tokens(tokens)).digest()
    return xxh3(head + xxh3(pack_tokens(tokens))) + bytes(16)


def recipe(hash_name: str, data: bytes) -> bytes:
    head = b"tsr.rcp\x01" + struct.pack("<Q", len(data))
    if hash_name == "sha256":
        return hashlib.sha256(head + data).digest()
    return xxh3(head + xxh3(data)) + bytes(16)


def fingerprint(texts: list[bytes], numbers: list[int]) -> bytes:
    """texts: model, weights, tokenizer, adapter, salt, rope; numbers: canonical, in order."""
    data = b"tsr.spc\x01"
    for text in texts:
        data += struct.pack("<I", len(text)) + text
    return hashlib.sha256(data + struct.pack("<11I", *numbers)).digest()[:16]


def field(data: bytes) -> str:
    return data.hex() if data else "-"


def item_field(item: tuple) -> str:
    kind, at, count, data = item
    return f"{kind}:{at}:{count}:{data.hex()}"


def print_tokens() -> None:
    print("# tokens N SEED HASH")
    for n in (1, 2, 4, 5, 32, 33, 60, 61, 64, 256, 257, 512, 1000, 4096, 32768):
        seed = n * 7 + 1
        print("tokens", n, seed, xxh3(pack_tokens(tokens_of(n, seed))).hex())


def print_keys() -> None:
    print("# key KIND N SPACE DIGEST EXTRA TOKENS KEY")
    space = bytes(range(16))
    digest = bytes(range(32, 64))
    extra = bytes(range(64, 80))
    tokens = bytes(range(80, 96))
    zero16, zero32 = bytes(16), bytes(32)
    for kind, n, parts in (
        (1, 256, (space, digest, zero16, tokens)),
        (2, 1, (space, zero32, zero16, tokens)),
        (2, 300, (space, digest, extra, tokens)),
        (3, 0x01020304, (space, digest, extra, tokens)),
        (3, 8192, (zero16, zero32, zero16, zero16)),
    ):
        print("key", kind, n, *(p.hex() for p in parts), key(kind, n, *parts).hex())


EXTRAS = (
    [],
    [(SALT, 0, 0, b"tenant-a")],
    [(ADAPTER, 0, 0, b"lora-7"), (SALT, 0, 0, b"tenant-a")],
    [(SALT, 0, 0, b"tenant-a"), (ADAPTER, 0, 0, b"lora-7")],
    [(MEDIA, 90, 20, bytes(range(32)))],
    [(MEDIA, 0, 101, b"\x01"), (MEDIA, 199, 1, b"\x02"), (MEDIA, 200, 9, b"\x03")],
    [(MEDIA, 150, 8, b"bb"), (MEDIA, 150, 8, b"ba"), (MEDIA, 150, 7, b"zz"), (MEDIA, 150, 8, b"c")],
    [(MEDIA, 120, 4, b"x"), (SALT, 0, 0, b"s" * 300), (SALT, 0, 0, b"r")],
)


def print_extras() -> None:
    print("# extra OFFSET N ITEM... BYTES HASH   (ITEM is kind:offset:n_tokens:data)")
    for items in EXTRAS:
        encoded = extra_encode(items, 100, 100)
        fields = [item_field(i) for i in items]
        print("extra", 100, 100, *fields, field(encoded), extra_hash(encoded).hex())


def print_digests() -> None:
    print("# chain HASH BLOCK N SEED EXTRA DIGEST...   (root first; EXTRA for every second block)")
    for name in ("sha256", "xxh3"):
        for size, n, seed, extra in (
            (16, 64, 5, b""),
            (256, 1024, 9, b""),
            (256, 700, 9, extra_encode(EXTRAS[3], 0, 1)),
            (1, 3, 1, b"\x01abc"),
        ):
            tokens = tokens_of(n, seed)
            chain = [root(name)]
            for i, at in enumerate(range(0, n, size)):
                chain.append(block(name, chain[-1], tokens[at : at + size], extra if i % 2 else b""))
            print("chain", name, size, n, seed, field(extra), *(d.hex() for d in chain))
    print("# context HASH N SEED DIGEST")
    for name in ("sha256", "xxh3"):
        for n in (0, 1, 13, 500):
            print("context", name, n, 3, context(name, tokens_of(n, 3)).hex())
    print("# recipe HASH BYTES DIGEST")
    for name in ("sha256", "xxh3"):
        for data in (b"", b"query,r=5", bytes(range(256))):
            print("recipe", name, field(data), recipe(name, data).hex())


def print_spaces() -> None:
    print("# space MODEL WEIGHTS TOKENIZER ADAPTER SALT ROPE NUMBER*11 FINGERPRINT")
    print("#   (texts in hex; dtype layout n_layers layer_first n_heads k_dim v_dim rank world group")
    print("#   block_tokens)")
    llama = b"meta-llama/Llama-3.1-8B"
    for texts, numbers in (
        ([llama, b"", b"", b"", b"", b""], [2, 0, 32, 0, 8, 128, 128, 0, 1, 0, 256]),
        (
            [llama, bytes(range(32)), b"tok", b"lora", b"tenant", b"theta=500000"],
            [1, 0, 16, 16, 4, 128, 64, 1, 2, 3, 16],
        ),
        ([b"deepseek", b"", b"", b"", b"", b""], [2, 1, 61, 0, 1, 576, 0, 3, 8, 0, 64]),
        ([b"x", b"", b"", b"", b"", b""], [5, 2, 1, 0, 1, 1, 0, 0, 1, 0, 1]),
    ):
        print("space", *(field(t) for t in texts), *numbers, fingerprint(texts, numbers).hex())


def window(space: bytes, extra: bytes, tokens: list[int]) -> bytes:
    base, mask = 0xD6E8FEB86659FD93, (1 << 64) - 1
    total = sum(t * pow(base, len(tokens) - 1 - i, 1 << 64) for i, t in enumerate(tokens))
    low, high = struct.unpack("<QQ", bytes(a ^ b for a, b in zip(space, extra)))
    seed = (low + high * base) & mask
    mixed = (((total & mask) ^ seed) * 0xA0761D6478BD642F) & mask
    return struct.pack("<Q", mixed ^ (mixed >> 32))


def print_windows() -> None:
    print("# window SPACE EXTRA SEED HASH   (of 32 tokens)")
    for space, extra, seed in (
        (bytes(16), bytes(16), 0),
        (bytes(range(16)), bytes(16), 7),
        (bytes(range(16)), xxh3(b"\x01abc"), 7),
        (bytes([255] * 16), bytes([1] * 16), 0xFFFFFFFF),
    ):
        print("window", space.hex(), extra.hex(), seed, window(space, extra, tokens_of(32, seed)).hex())


def main() -> None:
    print("# Made by make_keys.py from the layouts of docs/format.md. Bytes are hex, - is none.")
    print("# Tokens of a vector: i * 2654435761 + SEED modulo 2^32, i from 0 to N - 1.")
    print_tokens()
    print_keys()
    print_extras()
    print_digests()
    print_spaces()
    print_windows()


if __name__ == "__main__":
    main()
