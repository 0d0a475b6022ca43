# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gated delta net pieces in plain PyTorch (see __init__)."""

import itertools

import torch
import torch.nn.functional as F


def _act(y, activation):
    return F.silu(y) if activation in (True, "silu", "swish") else y


def causal_conv1d_fn_cpu(x, weight, bias=None, query_start_loc=None, cache_indices=None, has_initial_state=None, conv_states=None, activation="silu", **_):
    """x is [dim, tokens]; the last width-1 inputs of each request go to conv_states."""
    dim, width = weight.shape
    out = torch.empty_like(x)
    cuts = query_start_loc.tolist()
    for i, (lo, hi) in enumerate(itertools.pairwise(cuts)):
        slot = i if cache_indices is None else int(cache_indices[i])
        if hi <= lo or slot < 0:
            continue
        old = conv_states[slot][:, -(width - 1) :].to(x.dtype)
        if has_initial_state is None or not bool(has_initial_state[i]):
            old = torch.zeros_like(old)
        seq = torch.cat([old, x[:, lo:hi]], dim=1)
        y = F.conv1d(seq.float()[None], weight.float()[:, None], None if bias is None else bias.float(), groups=dim)[0]
        out[:, lo:hi] = _act(y, activation).to(x.dtype)
        conv_states[slot][:, -(width - 1) :] = seq[:, -(width - 1) :].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, **_):
    """x is [batch, dim], one new token for each request."""
    width = weight.shape[1]
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        slot = i if conv_state_indices is None else int(conv_state_indices[i])
        if slot < 0:
            out[i] = 0
            continue
        state = conv_state[slot]
        seq = torch.cat([state[:, -(width - 1) :].to(x.dtype), x[i][:, None]], dim=1)
        y = (seq.float() * weight.float()).sum(-1)
        if bias is not None:
            y = y + bias.float()
        out[i] = _act(y, activation).to(x.dtype)
        state[:, -(width - 1) :] = seq[:, 1:].to(state.dtype)
    return out


def fused_gdn_gating_cpu(A_log, a, b, dt_bias):
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return g[None], torch.sigmoid(b.float()).to(b.dtype)[None]


def _scan(q, k, v, g, beta, state):
    """One request. q,k [T,HK,K]; v [T,HV,V]; g,beta [T,HV]; state [HV,V,K], changed."""
    rep = v.shape[1] // q.shape[1]
    q, k, v = q.float(), k.float(), v.float()
    q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * q.shape[-1] ** -0.5
    k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
    q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    s, outs = state.float(), []
    for t in range(v.shape[0]):
        s = s * g[t].float().exp()[:, None, None]
        err = (v[t] - torch.einsum("hvk,hk->hv", s, k[t])) * beta[t].float()[:, None]
        s = s + torch.einsum("hv,hk->hvk", err, k[t])
        outs.append(torch.einsum("hvk,hk->hv", s, q[t]))
    state.copy_(s)
    return torch.stack(outs)


def chunk_gated_delta_rule_cpu(q, k, v, g, beta, initial_state=None, cu_seqlens=None, initial_state_indices=None, **_):
    out = torch.zeros_like(v)
    cuts = cu_seqlens.tolist()
    for i, (lo, hi) in enumerate(itertools.pairwise(cuts)):
        slot = i if initial_state_indices is None else int(initial_state_indices[i])
        if hi > lo and slot >= 0:
            out[0, lo:hi] = _scan(q[0, lo:hi], k[0, lo:hi], v[0, lo:hi], g[0, lo:hi], beta[0, lo:hi], initial_state[slot]).to(v.dtype)
    return out, None, None


def fused_sigmoid_gating_delta_rule_update_cpu(A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, cu_seqlens=None, **_):
    g, beta = fused_gdn_gating_cpu(A_log, a.reshape(-1, A_log.numel()), b.reshape(-1, A_log.numel()), dt_bias)
    return chunk_gated_delta_rule_cpu(q, k, v, g, beta, initial_state_source, cu_seqlens, initial_state_indices)[0]
