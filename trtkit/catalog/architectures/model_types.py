"""Values of ``model_type`` that transformers 5.14 runs as a decoder: it goes by this key, not by ``architectures``."""

from __future__ import annotations

CLASS_OF = {
    "RefinedWeb": "FalconForCausalLM",
    "RefinedWebModel": "FalconForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt-sw3": "GPT2LMHeadModel",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Those of the catalog, with their class; the first two are what Falcon was called before it was in transformers."""

OTHERS = frozenset({
    "afmoe", "apertus", "arcee", "bamba", "biogpt", "bitnet", "bloom", "blt", "codegen", "cohere", "cohere2",
    "cpmant", "ctrl", "cwm", "dbrx", "deepseek_v2", "deepseek_v3", "deepseek_v32", "diffllama", "doge", "dots1",
    "emu3", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon_h1", "falcon_mamba", "flex_olmo",
    "fuyu", "gemma3", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "glm", "glm4", "glm4_moe",
    "gpt_bigcode", "gpt_neo", "gpt_neox_japanese", "gpt_oss", "gptj", "granitemoe", "granitemoehybrid",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "jamba", "jetmoe", "lfm2", "lfm2_moe",
    "llama4", "llama4_text", "longcat_flash", "mamba", "mamba2", "minicpm3", "minimax", "minimax_m2",
    "ministral", "ministral3", "mllama", "mpt", "nanochat", "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3",
    "olmoe", "openai-gpt", "opt", "persimmon", "phi", "phi4_multimodal", "phimoe", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "seed_oss", "smollm3",
    "solar_open", "stablelm", "starcoder2", "vaultgemma", "xglm", "xlstm", "youtu", "zamba", "zamba2",
})  # fmt: skip
"""Those of families that are not in the catalog."""
