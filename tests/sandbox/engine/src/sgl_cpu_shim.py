# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start-up hook for a CPU-only SGLang venv built from PyPI wheels.

Put this file in the venv's site-packages together with a one-line
`sgl_cpu_shim.pth` that says `import sgl_cpu_shim`.  It costs nothing until
torchvision is imported.  It is needed because PyPI's torchvision wheel for
x86_64 is a CUDA build: beside a CPU torch its C++ library cannot load, and
the import then dies with "operator torchvision::nms does not exist".  SGLang
imports torchvision only for image transforms, which are pure Python, so it is
enough to declare the two operator schemas before torchvision is loaded.
"""

import contextlib
import importlib.abc
import importlib.machinery
import sys

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_keep = []


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        # is_torchvision_available()-style probes call find_spec without
        # importing: defer the torch import to the moment the module is run.
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            import torch

            if torch.version.cuda is None:
                lib = torch.library.Library("torchvision", "FRAGMENT")
                _keep.append(lib)
                for schema in _SCHEMAS:
                    with contextlib.suppress(RuntimeError):  # the real library is there
                        lib.define(schema)
            return run(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Hook())
