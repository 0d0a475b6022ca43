# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine has to know about the GPUs at hand, derived anew on each run: peer access, the toolkit, and where kernels compiled for them lie."""

from __future__ import annotations

import dataclasses
import typing as t

from .lanes import Lane, numbers


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Settings that follow from lane, GPUs and driver.

    :param options: of the engine, by long name; ``environment``: its environment.
    :param kernels: name of the folder for kernels that are compiled at run time: one for each engine, torch, driver and architecture.
    :param given_up: what these GPUs can't do, one sentence each.
    """

    options: t.Mapping[str, t.Any]
    environment: t.Mapping[str, str]
    kernels: str
    given_up: tuple[str, ...]


def hardware_for(lane: Lane, capabilities: t.Sequence[str], driver_version: str, *, toolkit: bool, peers_off: str = "") -> Hardware:
    """Return the settings for GPUs of these compute capabilities ("8.6").

    NCCL and the engine's own all-reduce ask for peer access each by itself: where copies between the GPUs don't arrive, both are told.

    :param driver_version: of the node; empty if there is none.
    :param toolkit: nvcc of the lane's CUDA is installed. Its folder is named, as those of other lanes may lie beside it.
    :param peers_off: why copies between the GPUs have to be switched off, empty if they work.
    """
    architectures = [f"sm{capability.replace('.', '')}" for capability in sorted(set(capabilities), key=numbers)]
    driver = [f"driver{driver_version}"] if driver_version else []
    home = {"CUDA_HOME": lane.cuda_home} if toolkit and lane.cuda_home else {}
    return Hardware(
        options={"disable_custom_all_reduce": True} if peers_off else {},
        environment={**home, **({"NCCL_P2P_DISABLE": "1"} if peers_off else {})},
        kernels="-".join([lane.engine_version, f"torch{lane.torch_version}", *driver, *architectures]),
        given_up=(f"direct copies between the GPUs ({peers_off})",) if peers_off else (),
    )
