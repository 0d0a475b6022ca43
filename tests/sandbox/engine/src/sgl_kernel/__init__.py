# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure-PyTorch stand-in for the CPU build of SGLang's kernel package.

No CPU wheel of the kernel package is on PyPI.  On a CPU without AMX SGLang
uses its torch-native code nearly everywhere; what is left of the kernel
package is (a) a few names that are only imported and (b) the operators of
gated delta net layers (Qwen3.5 / 3.6, Qwen3-Next).  This module gives (a) as
functions that raise when called and (b) as slow, plain PyTorch.

Written from the call sites and the published formulas, for tests with tiny
models only.
"""

import importlib.abc
import importlib.machinery
import sys

import torch

from . import mamba as _m


def _missing(name):
    def call(*_a, **_k):
        raise NotImplementedError("CPU kernel stand-in has no " + name)

    call.__name__ = name
    return call


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)


def _gemma_norm(x, weight, eps):
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    return (f * (1.0 + weight.float())).to(x.dtype)


def fused_qk_gemma_rmsnorm_cpu(q, k, qw, kw, eps, head_dim):
    return (_gemma_norm(q.reshape(-1, head_dim), qw, eps), _gemma_norm(k.reshape(-1, head_dim), kw, eps))


def fused_qk_gemma_rmsnorm_with_gate_cpu(q_gate, k, qw, kw, eps, head_dim, heads):
    both = q_gate.reshape(-1, heads, 2 * head_dim)
    q, gate = both.split(head_dim, dim=-1)
    return (_gemma_norm(q, qw, eps).reshape(-1, head_dim), _gemma_norm(k.reshape(-1, head_dim), kw, eps), gate.reshape(-1, head_dim).contiguous())


def fused_qkvzba_split_reshape_cat_contiguous_cpu(qkvz, ba, nk, nv, dk, dv):
    kd, vd = nk * dk, nv * dv
    qkv, z = qkvz.split([2 * kd + vd, vd], dim=-1)
    b, a = ba.split([nv, nv], dim=-1)
    return (qkv.contiguous(), z.reshape(z.shape[0], nv, dv).contiguous(), b.contiguous(), a.contiguous())


def fused_sigmoid_mul_cpu(x, gate):
    x.mul_(torch.sigmoid(gate.float()).to(x.dtype).view_as(x))


def fused_rmsnorm_gated_cpu(x, weight, z, eps):
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    return (f * torch.nn.functional.silu(z.float())).to(x.dtype)


for _name, _fn in {
    "fused_qk_gemma_rmsnorm_cpu": fused_qk_gemma_rmsnorm_cpu,
    "fused_qk_gemma_rmsnorm_with_gate_cpu": fused_qk_gemma_rmsnorm_with_gate_cpu,
    "fused_qkvzba_split_reshape_cat_contiguous_cpu": fused_qkvzba_split_reshape_cat_contiguous_cpu,
    "fused_sigmoid_mul_cpu": fused_sigmoid_mul_cpu,
    "fused_rmsnorm_gated_cpu": fused_rmsnorm_gated_cpu,
    "fused_gdn_gating_cpu": _m.fused_gdn_gating_cpu,
    "fused_sigmoid_gating_delta_rule_update_cpu": _m.fused_sigmoid_gating_delta_rule_update_cpu,
}.items():
    setattr(torch.ops.sgl_kernel, _name, _fn)


# SGLang takes the plain CPU branch of its gated RMS norm only on a CPU with AMX;
# elsewhere it asks CUDA for the number of SMs.  Send it to the function above.
_GATED = "sglang.kernels.ops.attention.fla.layernorm_gated"


class _After(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _GATED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module._use_cpu = True

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _After())
if _GATED in sys.modules:
    sys.modules[_GATED]._use_cpu = True
