# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Architectures as rows of data: what each keeps per token and per request, and how its weights are made.

Read in models/, configs/ and configs/model_config.py of the published wheels; tests/differential holds cache and state to them.
"""

from __future__ import annotations

import dataclasses
import typing as t

# OPAQUE and LATENT_OPAQUE: the cache is known, and the weights come from safetensors headers or a logged value.
DENSE, MOE, HYBRID, HYBRID_MOE, LATENT, OPAQUE = "dense", "moe", "hybrid", "hybrid_moe", "latent", "opaque"

# Kinds of state that a request keeps besides its tokens.
GDN, MAMBA, KDA = "gated delta net", "mamba", "kimi delta attention"
# Where the windowed layers are named.
TYPES, EVERY_FOURTH, PATTERN = "layer_types", "every fourth is full", "hybrid_layer_pattern"


@dataclasses.dataclass(frozen=True)
class Family:
    """One architecture.

    :param state: kind of state that some layers keep; empty without.
    :param window: where the layers with a sliding window are named; empty if all layers keep every token.
    :param experts: whether the feed-forward layers may be sparse.
    :param latent: whether keys and values share one compressed vector.
    :param qkv_bias: whether the projections have a bias whatever the config says; ``bias``: the field that says it.
    :param output_bias: whether that field counts for the output projection, too.
    :param tower: how the vision tower is counted: a key of ``_tower``; ``headers``: only by safetensors headers; empty: no images.
    :param head: whether speculation with the model's own head is modelled.
    :param tied: whether embedding and head are one matrix if the config does not say.
    :param since: first release that has the class.
    :param gated: whether a feed-forward layer has a gate beside its two matrices.
    :param defaults: fields that published configs leave out, with the class's own value.
    """

    kind: str = DENSE
    state: str = ""
    window: str = ""
    experts: bool = False
    latent: bool = False
    qkv_bias: bool = False
    bias: str = "attention_bias"
    output_bias: bool = True
    tower: str = ""
    head: bool = False
    tied: bool = False
    since: str = "0.5.9"
    gated: bool = True
    defaults: tuple[tuple[str, t.Any], ...] = ()

    @property
    def multimodal(self) -> bool:
        """Whether the engine treats it as a model with images."""
        return bool(self.tower)


_MOE = Family(MOE, experts=True)
_MLA = Family(LATENT, experts=True, latent=True)
_GDN = Family(HYBRID, state=GDN, head=True)
_GEMMA3 = Family(
    tied=True,
    defaults=(
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("vocab_size", 262208),
        ("max_position_embeddings", 131072),
    ),
)
_replace = dataclasses.replace

FAMILIES: dict[str, Family] = {
    # Every layer keeps every token.
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "Ministral3ForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": Family(),
    "Phi3ForCausalLM": Family(),
    "ApertusForCausalLM": Family(gated=False),
    "ArceeForCausalLM": Family(gated=False),
    "CohereForCausalLM": Family(tied=True),
    "Cohere2ForCausalLM": Family(tied=True),
    "Ernie4_5_ForCausalLM": Family(bias="use_bias", tied=True),
    "Exaone4ForCausalLM": Family(),
    "Gemma2ForCausalLM": Family(tied=True),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _replace(_GEMMA3, tower="siglip"),
    "Glm4ForCausalLM": Family(output_bias=False),
    "GraniteForCausalLM": Family(),
    "HunYuanDenseV1ForCausalLM": Family(),
    "InternLM3ForCausalLM": Family(bias="qkv_bias", output_bias=False),
    "MiMoForCausalLM": Family(output_bias=False, head=True),
    "Olmo2ForCausalLM": Family(),
    "LlavaForConditionalGeneration": Family(OPAQUE, tower="headers"),
    "Mistral3ForConditionalGeneration": Family(tower="pixtral"),
    "Qwen2VLForConditionalGeneration": Family(qkv_bias=True, output_bias=False, tower="headers"),
    "Qwen2_5_VLForConditionalGeneration": Family(qkv_bias=True, output_bias=False, tower="qwen2_5_vl"),
    "Qwen3VLForConditionalGeneration": Family(tower="qwen3_vl"),
    "Glm4vForConditionalGeneration": Family(output_bias=False, tower="glm4v"),
    "InternVLChatModel": Family(OPAQUE, tower="headers"),
    # Sparse feed-forward layers.
    "MixtralForCausalLM": _MOE,
    "Qwen2MoeForCausalLM": Family(MOE, experts=True, qkv_bias=True, output_bias=False),
    "Qwen3MoeForCausalLM": _MOE,
    "Qwen3VLMoeForConditionalGeneration": Family(MOE, experts=True, tower="qwen3_vl"),
    "OlmoeForCausalLM": _MOE,
    "PhiMoEForCausalLM": Family(MOE, experts=True),
    "BailingMoeV2ForCausalLM": Family(MOE, experts=True, bias="use_qkv_bias", output_bias=False, head=True),
    "Ernie4_5_MoeForCausalLM": Family(MOE, experts=True, bias="use_bias", tied=True),
    "Glm4MoeForCausalLM": Family(MOE, experts=True, output_bias=False, head=True),
    "Glm4vMoeForConditionalGeneration": Family(MOE, experts=True, output_bias=False, tower="glm4v"),
    "GraniteMoeForCausalLM": _MOE,
    "HunYuanMoEV1ForCausalLM": _MOE,
    "MiniMaxM2ForCausalLM": _MOE,
    "Ernie4_5_VLMoeForConditionalGeneration": Family(OPAQUE, experts=True, bias="use_bias", tied=True, tower="headers"),
    # Some layers keep a window only, in a pool of their own.
    "GptOssForCausalLM": Family(MOE, experts=True, window=TYPES),
    "Gemma4ForCausalLM": Family(MOE, experts=True, window=TYPES, tied=True, since="0.5.11"),
    "Gemma4ForConditionalGeneration": Family(MOE, experts=True, window=TYPES, tied=True, tower="gemma4", since="0.5.11"),
    "Llama4ForCausalLM": Family(MOE, experts=True),
    "Llama4ForConditionalGeneration": Family(MOE, experts=True, window=EVERY_FOURTH, tower="llama4"),
    "MiMoV2FlashForCausalLM": Family(MOE, experts=True, window=PATTERN),
    # Keys and values as one compressed vector.
    "DeepseekV2ForCausalLM": _MLA,
    "DeepseekV3ForCausalLM": _replace(_MLA, head=True),
    "Glm4MoeLiteForCausalLM": _replace(_MLA, head=True),
    "KimiK25ForConditionalGeneration": _replace(_MLA, tower="headers"),
    # A state of constant size in place of tokens, in most layers.
    "Qwen3NextForCausalLM": Family(HYBRID_MOE, state=GDN, experts=True, head=True),
    "Qwen3_5ForCausalLM": _GDN,
    "Qwen3_5MoeForCausalLM": Family(HYBRID_MOE, state=GDN, experts=True, head=True, since="0.5.17"),
    "Qwen3_5ForConditionalGeneration": _replace(_GDN, tower="qwen3_vl"),
    "Qwen3_5MoeForConditionalGeneration": Family(HYBRID_MOE, state=GDN, experts=True, head=True, tower="qwen3_vl"),
    "FalconH1ForCausalLM": Family(HYBRID, state=MAMBA, bias="attention_bias"),
    "GraniteMoeHybridForCausalLM": Family(HYBRID_MOE, state=MAMBA, experts=True),
    "NemotronHForCausalLM": Family(HYBRID_MOE, state=MAMBA, experts=True, gated=False),
    "KimiLinearForCausalLM": Family(HYBRID_MOE, state=KDA, experts=True, latent=True),
}

_NO_CLASS = "the engine has no class of its own for it, and Transformers' code, which it would run in its place, sizes memory in other ways"
_ENCODER = "it is an encoder or encoder-decoder: it generates no text token by token"
_SPARSE = "its attention keeps an index of the tokens beside the cache, which is not modelled"
_SHORT_CONVOLUTION = "its short convolutions keep a state that is not modelled"

# Why an architecture is refused, where it is known.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "Dots1ForCausalLM", "Exaone4_5_ForConditionalGeneration", "GlmForCausalLM", "InternVLForConditionalGeneration", "MiniMaxM1ForCausalLM",
            "Qwen2_5OmniForConditionalGeneration", "SeedOssForCausalLM", "SolarOpenForCausalLM", "Step3p7FlashForCausalLM", "SmolLM3ForCausalLM",
            "JambaForCausalLM", "NemotronForCausalLM", "Olmo3ForCausalLM",
        ),
        _NO_CLASS,
    ),
    **dict.fromkeys(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), _SPARSE),
    **dict.fromkeys(("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"), _SPARSE),
    "DeepseekV4ForCausalLM": "its compressed caches and their states are pools of their own, which are not modelled",
    "DeciLMForCausalLM": "its layers differ from one another (block_configs), which is not modelled",
    "KimiK3ForConditionalGeneration": "its cache and state are not modelled",
    "Step3p5ForCausalLM": "its heads differ from layer to layer (attention_other_setting), which is not modelled",
    **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), _SHORT_CONVOLUTION),
}  # fmt: skip

_NO_DECODER = (
    "T5",
    "MT5",
    "Bart",
    "Whisper",
    "Bert",
    "Roberta",
    "XLMRoberta",
    "ModernBert",
    "Deberta",
    "DistilBert",
    "Electra",
    "CLIP",
    "Siglip",
    "ViT",
    "Marian",
    "Pegasus",
)


def refusal_of(name: str, model_type: t.Any) -> str:
    """Return why an architecture is not planned, as far as that is known; empty if it is not."""
    if name in REFUSED:
        return REFUSED[name]
    if name.startswith(_NO_DECODER) or name.endswith(("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")):
        return _ENCODER
    if "EncoderDecoder" in name or str(model_type) in ("t5", "bart", "whisper", "bert", "roberta", "xlm-roberta"):
        return _ENCODER
    return ""
