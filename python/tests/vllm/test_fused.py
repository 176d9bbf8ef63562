"""The attention kernel, interpreted on the CPU, gives what torch gives."""

import os
import unittest

os.environ["TRITON_INTERPRET"] = "1"  # before it is imported

import torch  # noqa: E402

from tessera.compute.attention import Asked, Attention, Bias  # noqa: E402
from tessera.vllm import fused  # noqa: E402
from tessera.vllm.places import Rows  # noqa: E402

CPU = torch.device("cpu")


def noise(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def plain(q, keys, values, slots, groups, scale, bias=None):
    """Row by row; and the weights on each slot, by row."""
    group = q.shape[1] // keys.shape[1]
    out, weights, at = [], [], 0
    for n, sees in groups:
        for row in range(at, at + n):
            seen = [i for a, b in sees[:-1] for i in range(a, b)]
            a, b = sees[-1]
            seen += range(a, min(b, int(slots[row]) + 1))
            k, v = (x[seen].repeat_interleave(group, 1) for x in (keys, values))
            logits = torch.einsum("hd,khd->hk", q[row], k) * scale
            if bias is not None and row >= bias.first:
                logits += torch.nn.functional.pad(bias.by_key, (0, len(keys)))[seen]
            w = logits.softmax(-1)
            out.append(torch.einsum("hk,khd->hd", w, v).flatten())
            spread = torch.zeros(len(keys))
            spread[seen] = w.mean(0)
            weights.append(spread)
        at += n
    return torch.stack(out), torch.stack(weights)


class TestFused(unittest.TestCase):
    def check(self, q, keys, values, slots, groups, bias=None, n_mass=0):
        scale = q.shape[-1] ** -0.5
        rows = Rows(torch.tensor(slots), CPU)
        want, weights = plain(q, keys, values, slots, groups, scale, bias)
        for kernel in (None, fused.attend):
            attention = Attention(keys.shape[1], scale, kernel)
            asked = Asked(n_mass, torch.zeros(40)) if n_mass else None
            got = attention.attend(q, (keys, values), rows, groups, asked, bias)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            if asked:
                seen = weights[-n_mass:].sum(0)[:40]
                torch.testing.assert_close(asked.mass, seen, rtol=1e-4, atol=1e-5)

    def test_rows_at_chosen_positions_see_what_is_before_them(self):
        for n_keys, slots in ((50, [0, 3, 49]), (200, list(range(5, 200, 7))), (130, [129])):
            keys, values = noise(n_keys, 2, 64).split(32, -1)  # side by side, as in pages
            q = noise(len(slots), 4, 32, seed=2)
            self.check(q, keys, values, slots, [(len(slots), [(0, n_keys)])])

    def test_many_rows_and_keys_shared_out_among_programs(self):
        keys, values = noise(1300, 2, 64).split(32, -1)
        for slots in (list(range(1000, 1300)), [1, 700, 1299]):
            q = noise(len(slots), 2, 32, seed=3)
            self.check(q, keys, values, slots, [(len(slots), [(0, 1300)])])

    def test_groups_that_see_a_range_whole_and_one_up_to_themselves(self):
        keys, values = noise(100, 1, 32).split(16, -1)
        groups = [(10, [(90, 100), (0, 20)]), (5, [(90, 100), (20, 60)]), (3, [(60, 90)])]
        slots = [*range(10), *range(30, 60, 6), 60, 70, 89]
        self.check(noise(18, 2, 16, seed=4), keys, values, slots, groups)

    def test_a_bias_of_the_last_rows_and_what_they_look_at(self):
        keys, values = noise(90, 2, 32).split(16, -1)
        slots = [*range(10, 80, 10), 85, 86, 87, 89]
        bias = Bias(noise(60, seed=6), 5)
        q = noise(11, 4, 16, seed=5)
        for n_mass in (0, 1, 4, 11):
            self.check(q, keys, values, slots, [(11, [(0, 90)])], bias, n_mass)
        groups = [(4, [(0, 45)]), (7, [(0, 90)])]
        self.check(q, keys, values, slots, groups, bias, 5)

    def test_the_check_of_a_machine_passes_where_the_kernel_works(self):
        attention = Attention(2, 0.2)
        self.assertIsNone(fused.usable(attention, torch.empty(4, 16), 2))
        self.assertIsNone(attention.fused)  # the caller decides
        self.assertIn("24 elements", fused.usable(attention, torch.empty(4, 24), 2))

        def wrong(*args):
            fused_attend(*args)
            args[-1].mul_(1.1)

        fused_attend, fused.attend = fused.attend, wrong
        try:
            self.assertIn("off", fused.usable(attention, torch.empty(4, 16), 2))
        finally:
            fused.attend = fused_attend


if __name__ == "__main__":
    unittest.main()
