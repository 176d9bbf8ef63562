"""Every struct that Python repeats has the size and the offsets that the C compiler gives it."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from ctypes import sizeof
from pathlib import Path

import tessera
from tessera import _connector, _kvpool, _lib, blend

INCLUDE = Path(__file__).resolve().parents[2] / "include"
STRUCTS = {
    "tsr_space_desc": _lib.SpaceDesc,
    "tsr_extra": _lib.Extra,
    "tsr_range": _lib.Range,
    "tsr_prompt": _lib.Prompt,
    "tsr_match": _lib.MatchRow,
    "tsr_lookup": _lib.Lookup,
    "tsr_view": _lib.View,
    "tsr_load": _lib.Load,
    "tsr_store": _lib.Store,
    "tsr_key": _lib.Key,
    "tsr_clear": _lib.Clear,
    "tsr_stats": _lib.Stats,
    "tsr_event": _lib.Event,
    "tsr_group": _connector.Group,
    "tsr_connector_desc": _connector.ConnectorDesc,
    "tsr_request": _connector.RequestDesc,
    "tsr_blocks": _connector.Blocks,
    "tsr_step_row": _connector.StepRow,
    "tsr_step": _connector.Step,
    "tsr_finish": _connector.Finish,
    "tsr_worker_desc": _connector.WorkerDesc,
    "tsr_kv_plane": _connector.Plane,
    "tsr_kv_layout": _connector.Layout,
    "tsr_finished": _connector.Finished,
    "tsr_bad_block": _connector.BadBlock,
    "tsr_connector_stats": _connector.ConnectorStats,
    "tsr_kvpool_desc": _kvpool.KvPoolDesc,
    "tsr_slots": _kvpool.Slots,
    "tsr_rope": blend.Rope,
    "tsr_model_info": blend.ModelInfo,
    "tsr_model_row": blend.Row,
    "tsr_model_group": blend.Group,
    "tsr_model_pass": blend.Pass,
    "tsr_model_layer": blend.LayerStep,
    "tsr_model_deviation": blend.DeviationStep,
    "tsr_blend_step": blend.Step,
    "tsr_gate": blend.Gate,
    "tsr_blend_report": blend.Report,
    "tsr_ask": blend.AskDesc,
    "tsr_blend_config": blend.BlendConfig,
    "tsr_profile": blend.Profile,
}
HEADERS = ["tessera.h", "client.h", "server.h", "connector.h", "blend.h"]
PROTOTYPES = {
    **_lib._PROTOTYPES,
    **_connector._PROTOTYPES,
    **_kvpool._PROTOTYPES,
    **blend._PROTOTYPES,
}


def measured(structs, headers):
    """What the compiler says: one line of numbers for each struct."""
    lines = [f"#include <tessera/{name}>" for name in headers]
    lines += ["#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, struct in structs.items():
        lines.append(f'printf("{name} %zu", sizeof(struct {name}));')
        for field in struct._fields_:
            lines.append(f'printf(" %zu", offsetof(struct {name}, {field[0].rstrip("_")}));')
        lines.append('puts("");')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
        Path(source).write_text("\n".join(lines))
        subprocess.run(["cc", f"-I{INCLUDE}", source, "-o", program], check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: [int(n) for n in line.split()[1:]] for line in output.splitlines()}


class TestStructs(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cc"), "no compiler here")
    def test_sizes_and_offsets_are_those_of_the_headers(self):
        for name, numbers in measured(STRUCTS, HEADERS).items():
            struct = STRUCTS[name]
            here = [sizeof(struct)] + [
                getattr(struct, field[0]).offset for field in struct._fields_
            ]
            self.assertEqual(here, numbers, name)

    def test_every_prototype_is_one_of_the_header(self):
        text = "".join((INCLUDE / "tessera" / name).read_text() for name in HEADERS)
        for name, (_result, arguments) in PROTOTYPES.items():
            found = re.search(rf"TSR_API[^;]*?[ *]{name}\(([^;]*)\);", text)
            self.assertIsNotNone(found, name)
            inside = " ".join(found.group(1).split())
            count = 0 if inside == "void" else inside.count(",") + 1
            self.assertEqual(len(arguments), count, name)

    def test_the_library_says_which_one_it_is(self):
        self.assertEqual(tessera.__version__.encode(), _lib.library().tsr_version())
        self.assertIn("tessera", tessera.library_path())


if __name__ == "__main__":
    unittest.main()
