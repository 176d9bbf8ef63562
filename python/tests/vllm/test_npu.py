"""The connector with KV on an Ascend NPU, or what says that it is: tensors of vllm-ascend's form
over the fake AscendCL of the C tests (tests/support/fakeacl.h), which stops the process at every
mistake that it sees. rig.py has the model: one wrong byte anywhere fails."""

import ctypes
import os
import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

TREE = Path(__file__).resolve().parents[3]
BUILD = TREE / os.environ.get("B", "build")
FAKE = BUILD / "tests/fakeacl/libascendcl.so"
os.environ["TESSERA_ASCENDCL_LIB"] = str(FAKE)

import numpy  # noqa: E402  the environment comes first
import test_async  # noqa: E402
import torch  # noqa: E402
from rig import BLOCK, BLOCKS, HEAD, LAYERS, Rank, Rig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402

from tessera.compute.parts import Refused  # noqa: E402
from tessera.vllm import TesseraConnector, blend, npu  # noqa: E402

HALF = HEAD * 4  # bytes of a token in one tensor of a layer


def control_fields():
    """Of struct fakeacl_control, in their order: all of them are pointers to functions."""
    header = (TREE / "tests/support/fakeacl.h").read_text()
    body = re.search(r"struct fakeacl_control \{(.*?)\n\};", header, re.DOTALL)
    return re.findall(r"\(\*(\w+)\)\(", body[1])


class Runtime:
    """The fake runtime, as an engine would use it: device 0, and one stream. As torch_npu does, the
    engine keeps what it does in a queue until somebody asks for the handle of the stream."""

    def __init__(self):
        self._queued = []
        self.acl = ctypes.CDLL(str(FAKE))
        self.acl.aclInit(None)
        assert self.acl.aclrtSetDevice(0) == 0
        made = ctypes.c_void_p()
        assert self.acl.aclrtCreateStreamWithConfig(ctypes.byref(made), 0, 0) == 0
        self.stream = made.value
        fields = control_fields()
        control = (ctypes.c_void_p * len(fields)).in_dll(self.acl, "fakeacl_control")
        view = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        self._view = view(control[fields.index("view")])

    def memory(self, n_bytes):
        """Device memory, and where this process sees it."""
        made = ctypes.c_void_p()
        assert self.acl.aclrtMalloc(ctypes.byref(made), ctypes.c_size_t(n_bytes), 0) == 0
        seen = (ctypes.c_uint8 * n_bytes).from_address(self._view(made.value))
        return made.value, numpy.frombuffer(seen, numpy.uint8)

    def later(self, write):
        self._queued.append(write)

    def launch(self):
        while self._queued:
            self._queued.pop(0)()

    def synchronize(self):
        self.launch()
        assert self.acl.aclrtSetDevice(0) == 0
        assert self.acl.aclrtSynchronizeStream(ctypes.c_void_p(self.stream)) == 0


class Stream:
    """What torch.npu.current_stream() gives."""

    def __init__(self, runtime):
        self._runtime = runtime

    @property
    def npu_stream(self):
        self._runtime.launch()
        return self._runtime.stream

    def wait_stream(self, other):
        assert other.npu_stream == self.npu_stream


class NpuTensor:
    """Says that it is on an NPU, and where; nothing else can be done with it."""

    device = None  # set below

    def __init__(self, address, shape, dtype=torch.float32):
        self._address, self.shape, self.dtype = address, torch.Size(shape), dtype

    def data_ptr(self):
        return self._address

    def element_size(self):
        return self.dtype.itemsize

    def stride(self, axis=None):
        steps = [1]
        for size in reversed(self.shape[1:]):
            steps.insert(0, steps[0] * size)
        return tuple(steps) if axis is None else steps[axis]


class Rows:
    """bytes[:, slots] of both tensors of every layer, as rig.Rank has them in one."""

    def __init__(self, halves, runtime):
        self._halves = halves  # [layer][part]: [slot, byte]
        self._runtime = runtime

    def __getitem__(self, where):
        self._runtime.launch()
        _all, slots = where
        return numpy.stack([numpy.concatenate([h[slots] for h in one], -1) for one in self._halves])

    def __setitem__(self, where, value):
        self._runtime.later(lambda: self._write(where, value))

    def _write(self, where, value):
        _all, slots = where
        for i, one in enumerate(self._halves):
            for k, half in enumerate(one):
                row = value if numpy.isscalar(value) else value[i][:, k * HALF : (k + 1) * HALF]
                half[slots] = row


class NpuRank(Rank):
    runtime = None

    def __init__(self, config, kv_config, rank):
        self.rank, self.expected, self.bad, self.may_fail = rank, {}, set(), False
        self.stage = self.tensor_rank = 0
        shape = (BLOCKS, BLOCK, 1, HEAD)
        caches, halves = {}, []
        for name in LAYERS:
            made = [self.runtime.memory(BLOCKS * BLOCK * HALF) for _ in range(2)]
            caches[name] = tuple(NpuTensor(address, shape) for address, _seen in made)
            halves.append([seen.reshape(-1, HALF) for _address, seen in made])
        self.bytes = Rows(halves, self.runtime)
        self.connector = TesseraConnector(config, KVConnectorRole.WORKER, kv_config)
        self.connector.register_kv_caches(caches)
        assert self.connector._trouble is None, self.connector._trouble

    def begin(self, output):
        super().begin(output)
        self.runtime.synchronize()  # the step that reads what was loaded is behind it


class NpuRig(Rig):
    rank_class = NpuRank


def setUpModule():
    if not FAKE.exists():
        raise unittest.SkipTest(f"no {FAKE}: make")
    torch.utils.rename_privateuse1_backend("npu")
    NpuRank.runtime = Runtime()
    stream = Stream(NpuRank.runtime)
    torch._register_device_module("npu", SimpleNamespace(current_stream=lambda _device: stream))
    NpuTensor.device = torch.device("npu:0")
    patches = mock.patch.object(npu, "on_npu", lambda: True), mock.patch("test_async.Rig", NpuRig)
    for patch in patches:
        patch.start()
        unittest.addModuleCleanup(patch.stop)


class TestNpu(test_async.TestSchedules):
    """Requests that share beginnings and push each other out, with every position compared."""

    def setUp(self):
        if self._testMethodName not in ("test_synchronous", "test_loads_between_steps"):
            self.skipTest("the same on every device")

    def run_schedules(self, *args, **kwargs):
        used = super().run_schedules(*args, **kwargs)
        self.assertIsInstance(used.ranks[0], NpuRank)
        self.assertEqual(used.worker._place, ("npu", 0))
        return used


class TestLayouts(unittest.TestCase):
    """What is understood of vllm-ascend's KV, and what is refused by name."""

    def config(self, **text):
        return SimpleNamespace(
            additional_config=None,
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(**text)),
        )

    def group(self, row):
        from tessera._connector import GroupShape

        return (GroupShape(("a",), BLOCK, row * BLOCK),)

    def test_k_and_v(self):
        spec = SimpleNamespace(head_size=128, head_size_v=128)
        (group,) = npu.in_parts(self.group(8 * 256 * 2), [spec], self.config())
        self.assertEqual(group.parts, (2048, 2048))

    def test_mla_is_a_latent_and_a_rotated_part(self):
        kind = type("AscendMLAAttentionSpec", (), {})
        spec = kind()
        spec.head_size, spec.sparse_head_dim, spec.scale_dim = 576, None, 0
        config = self.config(kv_lora_rank=512, qk_rope_head_dim=64)
        (group,) = npu.in_parts(self.group(1152), [spec], config)
        self.assertEqual(group.parts, (1024, 128))
        spec.sparse_head_dim = (512, 64, 128)
        with self.assertRaisesRegex(Refused, "sparse attention"):
            npu.in_parts(self.group(1152), [spec], config)

    def test_nz_is_refused_by_name(self):
        spec = SimpleNamespace(head_size=128)
        config = self.config()
        config.additional_config = {"enable_kv_nz": True}
        with self.assertRaisesRegex(Refused, "nz order .enable_kv_nz."):
            npu.in_parts(self.group(512), [spec], config)

    def layout(self, *tensors, module=None):
        (group,) = npu.in_parts(self.group(64), [SimpleNamespace(head_size=HEAD)], self.config())
        from tessera.vllm.shape import group_layout

        with mock.patch.dict("sys.modules", {"torch_npu": module} if module else {}):
            return group_layout(group, {"a": tensors}, 4)

    def test_tensors_of_another_form_are_refused_by_name(self):
        one = NpuTensor(4096, (4, BLOCK, 1, HEAD))
        layout, _keep = self.layout(one, NpuTensor(1 << 20, (4, BLOCK, 1, HEAD)))
        self.assertEqual((layout.n_planes, layout.planes[1].dim), (2, HALF))
        self.assertEqual(layout.planes[1].layers[0], 1 << 20)
        with self.assertRaisesRegex(Refused, "3 KV tensors"):
            self.layout(one, one, one)
        with self.assertRaisesRegex(Refused, "quantised KV"):
            self.layout(one, NpuTensor(8192, (4, BLOCK, 1, HEAD), torch.int8))
        with self.assertRaisesRegex(Refused, "format 29"):
            self.layout(one, one, module=SimpleNamespace(get_npu_format=lambda _tensor: 29))
        self.layout(one, one, module=SimpleNamespace(get_npu_format=lambda _tensor: 2))


class TestBlending(unittest.TestCase):
    def test_a_model_on_an_npu_is_refused_by_name(self):
        parts = SimpleNamespace(device=torch.device("npu:0"))
        shape = SimpleNamespace(groups=(object(),))
        with (
            mock.patch.object(blend.plugin, "supported", lambda: True),
            mock.patch.object(blend.plugin, "loaded_model", object),
            mock.patch.object(blend, "take_apart", lambda *_: parts),
            self.assertRaisesRegex(Refused, "models on npu, which was never tested"),
        ):
            blend.BlendWorker(None, shape, None, None, 1)


if __name__ == "__main__":
    unittest.main()
