# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about clear statements in a start's log: options, files, kernels, links between GPUs."""

from __future__ import annotations

import re
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis

# A driver branch below the number cannot run a torch built for that CUDA major (NVIDIA, CUDA compatibility guide).
_DRIVER_OF_CUDA = {13: 580, 12: 525}


# The gate's message, its class, and the remedy.
_GATE = (
    (
        r"^GPU memory is in use",
        Failure.GPU_OCCUPIED,
        "It does not belong to this service (our leftovers are ended before a start): kpro.llm.gpu_cleanup on the node names the holder; end it where it runs",
    ),
    (
        r"^port \d+ on \S+ cannot be had \(Cannot assign requested address\)",
        Failure.GATE_REFUSED,
        "The container does not have this address: correct sglang_server__bind_address",
    ),
    (r"^port \d+ ", Failure.PORT_TAKEN, "End the other server or choose another sglang_server__port"),
    (r"^model .* cannot be read", Failure.MODEL_PATH_MISSING, "Check that the model store is mounted into the container, then run the role kpro.llm.hf_model"),
)


def gate_refused(case: Case) -> Diagnosis | None:
    """Our own gate said no before the engine was started."""
    found = case.seen(r"^gate: (?!ok)(.*)")
    if not found or case.log.phase != "gate":
        return None
    for words, class_, remedy in _GATE:
        if re.search(words, found[1]):
            return Diagnosis(class_, f"the gate refused the start: {found[1]}", remedy, (found.string,))
    return Diagnosis(
        Failure.GATE_REFUSED,
        f"the gate refused the start: {found[1]}",
        "Run the deployment again, it brings node, container and service in line",
        (found.string,),
    )


def bad_option(case: Case) -> Diagnosis | None:
    """The engine's parser refused an option."""
    found = case.find(r"sglang serve: error: (.*)|launch_server\.py: error: (.*)")
    if not found:
        return None
    words = found[1] or found[2]
    version = case.get("engine_version", "version")
    return Diagnosis(
        Failure.BAD_OPTION,
        f"the engine{f' {version}' if version else ''} refuses its options: {words}",
        "Correct sglang_server__options; option names differ between releases",
        (found.string,),
    )


def port_taken(case: Case) -> Diagnosis | None:
    """Another process has the port; the engine prints its ready line anyway."""
    line = case.line(r"(?i)address (?:is )?already in use|errno:? 98\b|EADDRINUSE")
    if not line:
        return None
    return Diagnosis(
        Failure.PORT_TAKEN,
        "the port is held by another process; the engine's warm-up talks to that one, so its own ready line means nothing",
        "End the other server or choose another sglang_server__port",
        (line,),
    )


def weights_truncated(case: Case) -> Diagnosis | None:
    """A weight file is shorter than its header says."""
    line = case.line(r"SafetensorError|incomplete metadata, file not fully covered")
    if not line:
        return None
    return Diagnosis(
        Failure.WEIGHTS_TRUNCATED,
        "a weight file is not whole: its download or copy was cut",
        "Run the role kpro.llm.hf_model again, it verifies and repairs the files",
        (line,),
    )


def model_path_missing(case: Case) -> Diagnosis | None:
    """The engine takes a path that is no folder for a name on the hub."""
    line = case.line(
        r"^(?!.*_fix_v5).*(?:Repo id must be in the form|does not appear to have a file named config\.json|couldn't connect to .* to load the files)"
    )
    if not line:
        return None
    path = case.get("model_path") or case.option("model_path") or "the model path"
    return Diagnosis(
        Failure.MODEL_PATH_MISSING,
        f"{path} is no model folder, so the engine took it for a name on the hub",
        "Check that the model store is mounted into the container, then run the role kpro.llm.hf_model",
        (line,),
    )


def model_type_unknown(case: Case) -> Diagnosis | None:
    """The library is older than the model's architecture."""
    found = case.find(r"model type [`'\"]([^`'\"]+)[`'\"] but Transformers does not recogni[sz]e") or _unknown_key(case)
    if not found:
        return None
    version = case.get("transformers", "versions.transformers")
    return Diagnosis(
        Failure.MODEL_TYPE_UNKNOWN,
        f"the model type '{found[1]}' is unknown to transformers{f' {version}' if version else ''} in this environment",
        "Use a lane with a newer engine (sglang_runtime__lane); the model itself is not at fault",
        (found.string,),
    )


def _unknown_key(case: Case) -> re.Match[str] | None:
    """The library's table of model types lacks the key."""
    found = case.find(r"^KeyError: '(\w+)'$")
    if not found:
        return None
    # Without its frames only a name like a model's, looked up before anything was loaded, tells a table of models.
    bare = not case.reading.frames and case.log.phase in ("gate", "launch", "options") and re.fullmatch(r"[a-z]+\d[a-z0-9_]*", found[1])
    return found if bare or found[1] == case.get("config_model_type") or case.frame(r"CONFIG_MAPPING|configuration_auto|AutoConfig") else None


def known_bug(case: Case) -> Diagnosis | None:
    """Known bugs, named as in the project's tracker."""
    line = case.line(r"shape mismatch in mtp weight loader|mtp.*shape mismatch")
    speculative = case.option("speculative_algorithm")
    if line and speculative:
        version = case.get("version", "engine_version") or "this version"
        return Diagnosis(
            Failure.KNOWN_UPSTREAM_BUG,
            f"FP8 checkpoints of Qwen3.6 with MTP ({speculative}) crash in SGLang {version}; fixed upstream by PR 27998",
            "Use a newer engine, or leave out the speculative_* options",
            (line,),
            confidence="likely",
        )
    return None


def dtype_mismatch(case: Case) -> Diagnosis | None:
    """State and model disagree about their number format."""
    found = case.find(r"mismatched types: (\w+) and (\w+)(?: in (\w+))?") or case.find(
        r"(?:same|have the) dtype,? but got:? \(?([\w.:]+) (?:!=|and) ([\w.:]+)()"
    )
    if not found:
        return None
    where = f" in {found[3]}" if found[3] else ""
    return Diagnosis(
        Failure.DTYPE_MISMATCH_STATE,
        f"two number formats meet, {found[1]} and {found[2]}{where}; everything after that line is an echo of it",
        "Set dtype (and mamba_ssm_dtype) so that both agree: --dtype bfloat16",
        (found.string,),
    )


def toolkit_missing(case: Case) -> Diagnosis | None:
    """Kernels are compiled at start, but the CUDA compiler is missing."""
    line = case.line(
        r"(?i)could not find nvcc|nvcc: (?:command )?not found|CUDA_HOME\b.*\bnot set|cannot find cuda_home|No such file or directory: '[^']*nvcc'"
        r"|nvcc not found|(?:could not|cannot|can't|unable to) (?:find|locate).*\b(?:nvcc|CUDA toolkit)\b"
    )
    if not line:
        return None
    cuda = case.get("torch_version_cuda", "versions.cuda")
    return Diagnosis(
        Failure.JIT_NEEDS_TOOLKIT,
        "kernels are compiled at the first start and need nvcc, which is not in the container",
        f"Install the CUDA toolkit{f' {cuda}' if cuda else ''} (role kpro.llm.sglang_runtime) or choose a backend with ready kernels "
        "(attention_backend: triton)",
        (line,),
    )


def cxx_missing(case: Case) -> Diagnosis | None:
    """torch compiles for the CPU, but the C++ compiler is missing."""
    line = case.line(r"InvalidCxxCompiler|No working C\+\+ compiler")
    if not line:
        return None
    return Diagnosis(
        Failure.COMPILER_MISSING,
        "the warm-up compiles with torch and found no C++ compiler",
        "Set TORCHDYNAMO_DISABLE=1 in sglang_server__environment, or install g++ and Python's headers",
        (line,),
    )


def toolkit_mismatch(case: Case) -> Diagnosis | None:
    """The toolkit belongs to another CUDA than torch does."""
    found = case.find(r"detected CUDA version \(([\d.]+)\) mismatches the version that was used to compile PyTorch \(([\d.]+)\)")
    if not found:
        return None
    return Diagnosis(
        Failure.NVCC_TORCH_MISMATCH,
        f"nvcc is of CUDA {found[1]}, torch was built for {found[2]}",
        f"Set CUDA_HOME to a toolkit {found[2]} for the build; the distribution's own may stay installed",
        (found.string,),
    )


def build_killed(case: Case) -> Diagnosis | None:
    """A compiler was killed for memory: too many at once."""
    line = case.line(
        r"died due to signal 9|(?:cc1plus|cicc|nvcc|ptxas|cc1|ld|lld|collect2).*[Kk]illed|[Kk]illed(?: signal)?.*(?:cc1plus|cicc|ptxas|cc1|collect2)"
    )
    if not line:
        return None
    kills, limit, cores = case.number("cgroup.events.oom_kill"), case.number("cgroup.memory_max"), case.number("cores", "max_jobs_env")
    memory = f" (cgroup limit {limit / 2**30:.0f} GiB, {kills:.0f} killed)" if kills and limit else ""
    jobs = f", {cores:.0f} parallel compilers" if cores else ""
    fewer = max(1, min(int(cores or 4), int((limit or 2**35) / 2**30 / 6)))
    return Diagnosis(
        Failure.BUILD_OOM,
        f"a kernel build was killed because main memory ran out{memory}{jobs}",
        f"Build with MAX_JOBS={fewer} (about 6 GiB each), or give the container more memory",
        (line,),
        "lower",
        "certain" if kills else "likely",
        "fix_and_continue",
    )


def build_failed(case: Case) -> Diagnosis | None:
    """A kernel build failed; the compiler's own first error is the cause, ninja's message the wrapper."""
    if not case.find(r"ninja: build stopped|Ninja build failed|Error building extension"):
        return None
    line = case.line(r"fatal error:|(?<!\w)error:(?! ninja)")
    if not line:
        return None
    nvcc = case.get("nvcc_release")
    return Diagnosis(
        Failure.JIT_COMPILE_FAILED,
        f"a kernel build failed: {line.split(': ', 1)[-1].strip()}{f' (nvcc {nvcc})' if nvcc else ''}",
        "Install the CUDA toolkit that belongs to the engine's CUDA (role kpro.llm.sglang_runtime)",
        (line,),
    )


def driver_too_old(case: Case) -> Diagnosis | None:
    """torch was built for a newer CUDA than the driver knows."""
    line = case.line(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version"
        r"|system has unsupported display driver / cuda driver"
        r"|cudaErrorInsufficientDriver|forward compatibility was attempted on non supported HW|provided PTX was compiled with an unsupported toolchain"
    )
    if not line:
        return None
    cuda, driver = str(case.get("torch_version_cuda", "versions.cuda") or ""), str(case.get("driver", "driver_version") or "")
    leading = cuda.partition(".")[0]
    major = int(leading) if leading.isdigit() else 13
    need = _DRIVER_OF_CUDA.get(major, 580)
    return Diagnosis(
        Failure.TORCH_NEWER_THAN_DRIVER,
        f"torch is built for CUDA {cuda or major} and needs driver {need} or newer; loaded is {driver or 'an older one'}",
        f"Use lane cu12, or a driver from {need} on, on node and container together",
        (line,),
    )


def no_peer_access(case: Case) -> Diagnosis | None:
    """The GPUs cannot read each other's memory."""
    line = case.line(r"peer access is not supported between these two devices")
    if not line:
        return None
    return Diagnosis(
        Failure.NO_PEER_ACCESS,
        "the GPUs have no peer access to each other, which the engine's own all-reduce needs",
        "Set disable_custom_all_reduce (--disable-custom-all-reduce) and NCCL_P2P_DISABLE=1",
        (line,),
        action="fix_and_continue",
    )


def allocator_conflict(case: Case) -> Diagnosis | None:
    """An allocator setting that shared GPU memory does not support."""
    line = case.line(r"cudaIpcGetMemHandle|cudaIpcOpenMemHandle|CUDA error: invalid argument|pidfd_getfd|expandable_segments")
    setting = str(case.get("env.PYTORCH_CUDA_ALLOC_CONF", "environment.PYTORCH_CUDA_ALLOC_CONF") or "")
    if not line or "expandable_segments:True" not in setting:
        return None
    return Diagnosis(
        Failure.FLAG_CONFLICT,
        "expandable_segments and custom all-reduce cannot be combined: such memory cannot be shared between the processes",
        "Remove PYTORCH_CUDA_ALLOC_CONF from sglang_server__environment, or set disable_custom_all_reduce",
        (line, f"PYTORCH_CUDA_ALLOC_CONF={setting}"),
    )


def library_mismatch(case: Case) -> Diagnosis | None:
    """The driver's libraries in the container and the node's driver have different versions."""
    line = case.line(r"Driver/library version mismatch")
    if not line:
        return None
    return Diagnosis(
        Failure.DRIVER_MISMATCH,
        "the driver's libraries in the container are of another version than the driver of the node",
        "Run the deployment again, it brings both to one version",
        (line,),
    )


def tokenizer_missing(case: Case) -> Diagnosis | None:
    """Without its tokenizer the model loads, and the first request fails."""
    line = case.line(
        r"unexpected error loading tokenizer\.json|tokenizer\.chat_template is not set|Can't load tokenizer|Couldn't instantiate the backend tokenizer"
        r"|IndexError: index is out of bounds"
    )
    if not line:
        return None
    return Diagnosis(
        Failure.TOKENIZER_MISSING,
        "the tokenizer files are missing or of another model, so the first request failed after the model had been loaded",
        "Run the role kpro.llm.hf_model again, it completes the files",
        (line,),
        confidence="likely",
    )


def rank_waits(case: Case) -> Diagnosis | None:
    """One rank waits for another that died or reads from a slow disk."""
    line = case.line(r"TP rank could finish the model loading, but there are other ranks")
    if not line:
        return None
    return Diagnosis(
        Failure.RANK_MISSING,
        "one rank finished loading and waited for another, which died or reads from a slow disk",
        "Look at the first rank that failed; on slow storage set weight_loader_disable_mmap",
        (line,),
        confidence="likely",
    )


def killed_child(case: Case) -> Diagnosis | None:
    """A child process of the engine was killed from outside."""
    found = case.seen(r"Subprocess (\S+) \(pid=(\d+)\) crashed with exit code (-?\d+)")
    if not found or case.first_error:
        return None
    signal = f"signal {-int(found[3])}" if found[3].startswith("-") else f"exit code {found[3]}"
    return Diagnosis(
        Failure.CHILD_KILLED,
        f"{found[1]} (pid {found[2]}) ended by {signal} without an error of its own: it was killed from outside",
        "Look at the kernel's log on the node (memory, Xid); start again",
        (found.string,),
        confidence="likely",
    )


def warmup_failed(case: Case) -> Diagnosis | None:
    """The web server was up, the first request failed; nothing was ever served."""
    found = case.find(r"Initialization failed\. warmup error: ?(.*)")
    if not found:
        return None
    cause = case.first_error if not found[1] or found[1].startswith("Traceback") else found[1]
    gpu = ": no kernel for this GPU in this build" if "no kernel image" in cause else ""
    return Diagnosis(
        Failure.WARMUP_FAILED,
        f"the web server was up but served nothing, its warm-up failed: {re.sub(r'^RuntimeError: ', '', cause) or 'no reason given'}",
        f"Read the error above{gpu}; an attention_backend that fits the GPU (triton) often helps",
        (found.string,),
        confidence="likely",
    )


def first_exception(case: Case) -> Diagnosis | None:
    """An exception that no rule knows: named, not explained."""
    line = case.first_error
    if not line:
        return None
    return Diagnosis(Failure.UNKNOWN, f"the first failing process said: {line.strip()}", "", (line,), confidence="none")


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (
    gate_refused,
    bad_option,
    port_taken,
    weights_truncated,
    model_path_missing,
    model_type_unknown,
    known_bug,
    dtype_mismatch,
    toolkit_missing,
    cxx_missing,
    toolkit_mismatch,
    build_killed,
    build_failed,
    driver_too_old,
    library_mismatch,
    no_peer_access,
    allocator_conflict,
    rank_waits,
    tokenizer_missing,
    killed_child,
    warmup_failed,
)
