# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The family of an exception that no rule knows: by its type, what its message is made of, and the code that raised it.

A family claims no more than the exception does. The message states it (``certain``), or only the raising code suggests it (``likely``).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._engine.failures import Failure
from .case import Case, Diagnosis
from .reader import Frame, Trace

_SHOWN = 1200


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of exception.

    :param words: what it means, before the exception's own text.
    :param remedy: one way out, or empty.
    :param type: pattern of the exception's type.
    :param said: pattern of its text; where both are given, one of them is enough.
    :param frames: pattern of the file that raised it, which must match too where it is given.
    """

    class_: Failure
    words: str
    remedy: str
    type: str = ""
    said: str = ""
    frames: str = ""

    def fits(self, trace: Trace) -> bool:
        """Return whether an exception is of this family."""
        text = "\n".join(trace.said)
        named = bool(self.type and re.search(self.type, trace.type)) or bool(self.said and re.search(self.said, text, re.IGNORECASE))
        return named and (not self.frames or any(re.search(self.frames, frame.file) for frame in trace.frames))


_NODE_MEMORY = "Give the container more main memory (gpu_container__memory_mib), or set weight_loader_disable_mmap"
_FIX_MODEL = "Run the role kpro.llm.hf_model again, it verifies and completes the files"
_OTHER_KERNELS = "Choose kernels that this GPU has: attention_backend triton, or another backend of the option that the exception names"

# The most special first. Texts are matched without regard to case, and only in the exception that ended the start.
FAMILIES: tuple[Family, ...] = (
    Family(
        Failure.REASONING_PARSER_WRONG,
        "reasoning_parser does not fit this model's tokenizer",
        "Take another reasoning_parser, or none",
        said=r"think_(?:start|end)_token.*exactly one token|reasoning.?parser.*(?:not (?:found|supported)|unknown)",
    ),
    Family(
        Failure.TOOL_PARSER_WRONG,
        "tool_call_parser is none that this engine and model have",
        "Take another tool_call_parser, or none",
        said=r"unsupported tool_call_parser|tool.?call.?parser.*(?:not (?:found|supported)|unknown|invalid)",
    ),
    Family(
        Failure.SHM_FULL,
        "shared memory (/dev/shm of the container) could not be had",
        "Look at df /dev/shm in the container; kpro.llm.gpu_cleanup removes what earlier runs left there",
        said=r"/dev/shm|shm_open|(?:unable|failed|not enough|insufficient|no space)[^\n]{0,60}(?:shared memory|\bshm\b)|error while creating shared memory",
    ),
    Family(
        Failure.DISK_FULL,
        "a disk or quota of the container is full",
        "Free space on the file system that the exception names",
        said=r"no space left on device|errno (?:28|122)\b|quota exceeded",
    ),
    Family(
        Failure.PORT_TAKEN,
        "a port that the engine wants is held by another process",
        "End the other server or choose another sglang_server__port",
        said=r"address (?:is )?already in use|errno:? 98\b|EADDRINUSE|port \d+ is (?:not available|in use|already)",
    ),
    Family(
        Failure.PERMISSION_DENIED,
        "the service's user may not do this",
        "Look at owner and mode of what the exception names; the service runs as its own user",
        type=r"^PermissionError$",
        said=r"permission denied|errno (?:1|13|30)\b|operation not permitted|read-only file system",
    ),
    Family(
        Failure.NATIVE_LIBRARY,
        "a native library does not load",
        "Run the role kpro.llm.sglang_runtime again: it installs packages that belong together; leave out packages added by hand",
        said=r"undefined symbol|cannot open shared object file|version `[^']+' not found|symbol lookup error|invalid ELF|wrong ELF class"
        r"|cannot allocate memory in static TLS|failed to load (?:shared )?library",
    ),
    Family(
        Failure.PACKAGE_MISSING,
        "a Python package is missing or of another version",
        "Run the role kpro.llm.sglang_runtime again; for a model that needs an extra package, add it to the runtime",
        type=r"^(?:ModuleNotFoundError|ImportError|(?:\w+\.)*PackageNotFoundError|(?:\w+\.)*VersionConflict)$",
        said=r"please (?:pip )?install|is not installed|requires? \S+[<>=]=? ?\d",
    ),
    Family(
        Failure.NO_GPU_VISIBLE,
        "the engine sees no GPU, or fewer than it wants",
        "Look at kpro.llm.gpu_info on the node and in the container; let the deployment pass the devices again",
        said=r"no cuda gpus? (?:are|is) available|no cuda-capable device|found no nvidia driver|no nvidia driver|CUDA_ERROR_NO_DEVICE"
        r"|0 active drivers|not compiled with cuda"
        r"|invalid device ordinal|device (?:kernel image|count) is (?:0|zero)|nvml[^\n]{0,40}(?:not found|uninitialized|unknown error)|no accelerator"
        r"|cuda(?: is)? not available|devices? (?:is|are) busy or unavailable|torch\.cuda\.is_available",
    ),
    Family(
        Failure.KERNEL_RESOURCE_LIMIT,
        "a kernel needs more of the card (shared memory, registers, threads) than this GPU has",
        _OTHER_KERNELS,
        type=r"OutOfResources",
        said=r"out of resource|too many resources requested|too much shared (?:data|memory)|hardware limit|invalid configuration argument"
        r"|shared memory[^\n]{0,40}exceed|exceeds?[^\n]{0,40}shared memory",
    ),
    Family(
        Failure.KERNEL_UNSUPPORTED,
        "a kernel does not support this GPU generation",
        _OTHER_KERNELS,
        said=r"no kernel image|invalid device function|unsupported (?:gpu|cuda|sm|device|toolchain|hardware|arch)|(?:compute capability|\bsm_?\d\d"
        r"|\bsm ?>=? ?\d|hopper|blackwell|ampere|\barch\b)[^\n]{0,80}(?:only|requir|support|need|at least|or (?:newer|above|higher))"
        r"|(?:only|requir|support|need)[^\n]{0,80}(?:compute capability|\bsm_?\d\d|hopper|blackwell|ampere|sm ?>=? ?\d)|not supported on (?:this|your"
        r"|the current|sm)|named symbol not found|unsupported toolchain|arch conditional",
    ),
    Family(
        Failure.JIT_COMPILE_FAILED,
        "a kernel could not be compiled",
        "Look at the compiler's own first error; the CUDA toolkit and compilers come with the role kpro.llm.sglang_runtime",
        type=r"CompilationError|CompileError|BackendCompilerFailed|LoweringException|InductorError|NVRTCError|PTXASError",
        said=r"ptxas|nvrtc|ninja (?:build )?(?:failed|stopped)|error (?:compiling objects|building extension)|passmanager::run failed|llvm error"
        r"|nvcc[^\n]{0,60}(?:failed|error)|(?:gcc|g\+\+|cc1plus|clang)[^\n]{0,80}(?:failed|error|non-zero)|compilation (?:failed|terminated)"
        r"|tvm[^\n]*compile",
    ),
    Family(
        Failure.ENGINE_WATCHDOG,
        "the engine's own watchdog ended it, because a step took too long",
        "Look at the node (GPU, disk, kernel log) for what was slow; watchdog_timeout allows more",
        said=r"(?:scheduler|detokenizer|soft|engine|tokenizer)[^\n]{0,20}watchdog|watchdog timeout|heartbeat (?:timeout|lost)|health check[^\n]{0,20}time",
    ),
    Family(
        Failure.COLLECTIVE_TIMEOUT,
        "ranks waited for each other in vain",
        "Look at the first rank that failed or hangs; without peer access set disable_custom_all_reduce and NCCL_P2P_DISABLE=1",
        said=r"collective operation time|watchdog caught|(?:barrier|rendezvous|all_?reduce|all_?gather|broadcast|store|gloo|nccl"
        r"|process ?group)[^\n]{0,80}time(?:d ?|-)?out|time(?:d ?|-)?out[^\n]{0,80}(?:barrier|rendezvous|store|ranks?|clients|peers?|collective|all_?reduce)",
    ),
    Family(
        Failure.RANK_SETUP_FAILED,
        "the ranks could not be connected",
        "Set NCCL_DEBUG=WARN in sglang_server__environment and read what NCCL says; tp_size must not exceed the GPUs of the container",
        type=r"Dist(?:Backend|Network|Store)?Error$|NCCLError",
        said=r"nccl (?:error|failure)|nccl[A-Z]\w+Error|unhandled (?:cuda|system) error|tcpstore|connectfullmesh|duplicate gpu|init_process_group"
        r"|gloo[^\n]{0,60}(?:fail|error|connect)|(?:world.?size|tp.?size|rank)[^\n]{0,60}(?:exceed|larger|greater|more than)[^\n]{0,40}(?:gpu|device)",
    ),
    Family(
        Failure.HOST_MEMORY,
        "main memory could not be had (container or node, not the GPU)",
        _NODE_MEMORY,
        type=r"^MemoryError$|ArrayMemoryError",
        said=r"cannot allocate memory|errno 12\b|std::bad_alloc|defaultcpuallocator|can't allocate memory|cudaHost(?:Alloc|Register)"
        r"|pinned? memory[^\n]{0,40}(?:fail|alloc)|not enough host memory|unable to mmap",
    ),
    Family(
        Failure.REQUEST_SLOTS_EXHAUSTED,
        "a pool for requests or tokens was exhausted while serving",
        "Set a smaller max_running_requests, or a shorter context_length",
        said=r"(?:kv|token|req\w*|slot|page|mamba|lora)[^\n]{0,30}(?:pool|slots?|cache)[^\n]{0,40}(?:exhaust|runs? out|ran out|is full|no (?:free"
        r"|available))|out of (?:kv|slots|pages|tokens)|runs out of memory|no (?:free|available) (?:slots?|pages?|blocks?)|(?:prefill|decode) out of memory",
    ),
    Family(
        Failure.MODEL_TYPE_UNKNOWN,
        "this engine or its transformers does not know the model's architecture",
        "Use a lane with a newer engine (sglang_runtime__lane); if the model brings its own code, set trust_remote_code after reading that code",
        said=r"model (?:type|class|architecture)s?\b[^\n]{0,120}(?:not (?:supported|recogni[sz]e|registered|found)|unsupported|unknown|recogni[sz]e)"
        r"|does not recogni[sz]e this (?:architecture|model)|unrecogni[sz]ed (?:configuration|model)|(?:unsupported|unknown) (?:model|architecture)"
        r"|no sglang implementation|trust_remote_code|not compatible with sglang",
    ),
    Family(
        Failure.WEIGHT_FORMAT_UNSUPPORTED,
        "the weights' format or quantisation does not go with this GPU, engine or tensor-parallel size",
        "Use another form of the model (other quantisation), or another tp_size",
        said=r"quanti[sz](?:ation|ed|e)\b|\b(?:awq|gptq|marlin|nvfp4|mxfp4|fp8|bitsandbytes|gguf|compressed.tensors)\b|(?:not|is n't) divisible by"
        r"|must be divisible|size mismatch|shape mismatch|tensor.parallel|\btp_size\b|copying a param with shape|(?:param|weight"
        r"|tensor)[^\n]{0,60}(?:shape|size)[^\n]{0,40}(?:mismatch|match|!=)",
    ),
    Family(
        Failure.MODEL_FILES_WRONG,
        "the model's files are missing, incomplete or of another kind",
        _FIX_MODEL,
        type=r"SafetensorError|EntryNotFoundError|LocalEntryNotFound|RepositoryNotFound|HFValidationError|HfHubHTTPError|OfflineMode",
        said=r"(?:no|any|find|missing|load)[^\n]{0,30}(?:model weights|safetensors|checkpoint|\.bin files)|config\.json|tokenizer(?:_config)?\.json"
        r"|generation_config|preprocessor_config|pytorchstreamreader|invalid header|header ?too|incomplete metadata|error while deserializing"
        r"|huggingface\.co|hf_hub_offline|is not a local folder|repo id must|(?:shard|safetensors|index)[^\n]{0,40}(?:missing|not found|corrupt)",
    ),
)

# What the raising code is about, where the message says nothing: the innermost frame of an engine or a library it uses.
SUBSYSTEMS: tuple[tuple[str, Failure], ...] = (
    (r"(?:^|/)sglang/srt/(?:server_args\.py|arg_groups/)|(?:^|/)sglang/(?:cli|launch_server)|(?:^|/)argparse\.py", Failure.BAD_OPTION),
    (
        r"(?:^|/)sglang/srt/layers/(?:quantization/|parameter\.py|linear\.py)|(?:^|/)compressed_tensors/|(?:^"
        r"|/)bitsandbytes/",
        Failure.WEIGHT_FORMAT_UNSUPPORTED,
    ),
    (r"(?:^|/)sglang/srt/(?:model_loader/|connector/)|(?:^|/)safetensors/|(?:^|/)huggingface_hub/", Failure.MODEL_FILES_WRONG),
    (r"(?:^|/)sglang/srt/(?:models|configs)/|(?:^|/)transformers/|(?:^|/)transformers_modules/", Failure.MODEL_CODE_FAILED),
    (r"(?:^|/)sglang/srt/distributed/|(?:^|/)torch/distributed/", Failure.RANK_SETUP_FAILED),
    (
        r"(?:^|/)sglang/(?:jit_kernel|kernels)/|(?:^|/)sglang/srt/layers/(?:attention|moe|deep_gemm_wrapper)/|(?:^|/)(?:sgl_kernel|triton|flashinfer"
        r"|deep_gemm|tvm_ffi|cutlass|flash_attn|flash_mla)/"
        r"|(?:^|/)torch/(?:_inductor|_dynamo|utils/cpp_extension)|(?:^|/)sglang/srt/compilation/",
        Failure.KERNEL_FAILED,
    ),
    (r"(?:^|/)sglang/srt/(?:mem_cache)/", Failure.CACHE_FAILED),
    (r"(?:^|/)sglang/srt/(?:speculative)/", Failure.SPECULATION_FAILED),
    (r"(?:^|/)sglang/srt/(?:disaggregation)/", Failure.DISAGGREGATION_FAILED),
    (r"(?:^|/)sglang/srt/(?:lora)/", Failure.ADAPTER_FAILED),
    (r"(?:^|/)sglang/srt/(?:multimodal)/|(?:^|/)sglang/multimodal_gen/", Failure.MULTIMODAL_FAILED),
)
_SUBSYSTEM_WORDS: dict[Failure, tuple[str, str]] = {
    Failure.BAD_OPTION: ("the engine's check of its options refused them", "Correct sglang_server__options by what the exception says"),
    Failure.WEIGHT_FORMAT_UNSUPPORTED: ("the code that reads quantised or split weights failed", ""),
    Failure.MODEL_FILES_WRONG: ("the code that loads the model's files failed", _FIX_MODEL),
    Failure.MODEL_CODE_FAILED: ("the code of this model (engine or transformers) failed", ""),
    Failure.RANK_SETUP_FAILED: ("the code that connects the ranks failed", ""),
    Failure.KERNEL_FAILED: ("the code of a kernel or its compilation failed", _OTHER_KERNELS),
    Failure.CACHE_FAILED: ("the engine's cache code failed", ""),
    Failure.SPECULATION_FAILED: ("the engine's speculative decoding failed", "Leave out the speculative_* options"),
    Failure.DISAGGREGATION_FAILED: ("the engine's split of prefill and decode failed", ""),
    Failure.ADAPTER_FAILED: ("the engine's code for adapters (LoRA) failed", ""),
    Failure.MULTIMODAL_FAILED: ("the engine's code for images, audio or video failed", ""),
}


def family(case: Case) -> Diagnosis | None:
    """Return the family of the exception that ended the start; None if there is no exception, or none is known."""
    fatal = case.reading.fatal
    if fatal is None:
        return None
    for trace in fatal.chain:
        for kind in FAMILIES:
            if kind.fits(trace):
                return _found(case, kind.class_, kind.words, kind.remedy, "certain" if kind.said else "likely", trace)
    if fatal.native:
        words = "a process of the engine aborted in native code"
        remedy = "Look at the frames below it in the log, and for Xid events in the node's kernel log (kpro.llm.gpu_info on the node)"
        return _found(case, Failure.NATIVE_ABORT, words, remedy, "likely", fatal)
    class_ = subsystem([frame for trace in reversed(fatal.chain) for frame in trace.frames]) if not _plain(fatal) else None
    return _found(case, class_, *_SUBSYSTEM_WORDS[class_], "likely", fatal) if class_ else None


def _plain(trace: Trace) -> bool:
    """Errors of any Python code tell nothing but the place."""
    return trace.type in ("ZeroDivisionError", "KeyboardInterrupt", "SystemExit")


def subsystem(frames: t.Sequence[Frame]) -> Failure | None:
    """Return what the innermost telling frame is about."""
    for frame in reversed(frames):
        for pattern, class_ in SUBSYSTEMS:
            if re.search(pattern, frame.file.replace("\\", "/")):
                return class_
        if re.search(r"(?:^|/)sglang/", frame.file):
            return None
    return None


def _found(case: Case, class_: Failure, words: str, remedy: str, confidence: str, trace: Trace) -> Diagnosis:
    whole = "\n".join(case.reading.fatal.said if case.reading.fatal else trace.said).strip()
    from_ = "" if trace is case.reading.fatal else f", which came from: {trace.said[0]}"
    rank = f"rank {case.rank}: " if case.rank else ""
    place = f" ({trace.frames[-1].file.rpartition('site-packages/')[2]}, {trace.frames[-1].name})" if trace.frames else ""
    return Diagnosis(class_, f"{rank}{words}{place}: {whole[:_SHOWN]}{from_}", remedy, tuple(case.reading.passage[:12]), confidence=confidence)
