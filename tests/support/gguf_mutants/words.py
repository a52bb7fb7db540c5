"""Names that libllama reads from a GGUF: architectures and keys (``src/llama-arch.cpp``)."""

ARCHITECTURES = """
clip llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert
nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2
qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe phi2 phi3 phimoe plamo
plamo2 plamo3 codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4
gemma4-assistant gemma-embedding starcoder2 mamba mamba2 jamba falcon-h1 xverse command-r cohere2
cohere2moe dbrx olmo olmo2 olmoe openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32
deepseek4 chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h
nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe
granitehybrid chameleon wavtokenizer-dec plm bailingmoe bailingmoe2 dots1 arcee afmoe ernie4_5
ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl smollm3 gpt-oss lfm2 lfm2moe dream smallthinker
llada llada-moe seed_oss grovemoe apertus minimax-m2 cogvlm rnd1 pangu-embedded mistral3 eagle3
dflash mistral4 paddleocr mimo2 step35 llama-embed maincoder kimi-linear talkie mellum
""".split()  # noqa: SIM905 - a list of 130 strings reads worse

# Behind the architecture's name and a dot.
NUMBERS = """
vocab_size context_length embedding_length embedding_length_out embedding_length_per_layer_input
features_length block_count leading_dense_block_count feed_forward_length
expert_feed_forward_length expert_shared_feed_forward_length expert_chunk_feed_forward_length
expert_count expert_used_count expert_shared_count expert_group_count expert_group_used_count
expert_latent_length expert_gating_func experts_per_group moe_every_n_layers moe_latent_size
nextn_predict_layers n_deepstack_layers pooling_type decoder_start_token_id decoder_block_count
rescale_every_n_layers time_mix_extra_dim time_decay_extra_dim token_shift_count
interleave_moe_layer_step full_attention_interval attention.head_count attention.head_count_kv
attention.key_length attention.value_length attention.group_norm_groups attention.q_lora_rank
attention.kv_lora_rank attention.decay_lora_rank attention.iclr_lora_rank
attention.value_residual_mix_lora_rank attention.gate_lora_rank attention.relative_buckets_count
attention.sliding_window attention.sliding_window_pattern attention.key_length_mla
attention.value_length_mla attention.key_length_swa attention.value_length_swa
attention.indexer.head_count attention.indexer.key_length attention.indexer.top_k
attention.temperature_length attention.shared_kv_layers rope.dimension_count
rope.dimension_count_swa rope.scaling.original_context_length ssm.conv_kernel ssm.inner_size
ssm.state_size ssm.time_step_rank ssm.group_count kda.head_dim wkv.head_size
posnet.embedding_length posnet.block_count convnext.embedding_length convnext.block_count
classifier.output_labels target_hidden_size shortconv.l_cache dense_2_feat_in dense_2_feat_out
dense_3_feat_in dense_3_feat_out
""".split()  # noqa: SIM905

FLOATS = """
attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.group_norm_epsilon
attention.scale attention.output_scale attention.value_scale attention.temperature_scale
attention.max_alibi_bias attention.clamp_kqv rope.freq_base rope.freq_base_swa rope.scale_linear
rope.scaling.factor rope.scaling.attn_factor rope.scaling.alpha rope.scaling.yarn_log_multiplier
rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast
rope.scaling.yarn_beta_slow logit_scale attn_logit_softcapping router_logit_softcapping
final_logit_softcapping residual_scale embedding_scale expert_weights_scale expert_group_scale
swiglu_clamp_exp swiglu_clamp_shexp
""".split()  # noqa: SIM905

FLAGS = """
attention.causal use_parallel_residual expert_weights_norm swin_norm rope.scaling.finetuned
ssm.dt_b_c_rms norm_before_residual attention.recurrent_layers attention.sliding_window_pattern
""".split()  # noqa: SIM905

LISTS = """
attention.head_count attention.head_count_kv feed_forward_length expert_used_count
rope.dimension_sections deepstack_mapping target_layers attention.sliding_window_pattern
attention.recurrent_layers attention.compress_ratios attention.rope_pattern swiglu_clamp_exp
""".split()  # noqa: SIM905

TEXTS = {
    "general.type": "model adapter mmproj imatrix x",
    "adapter.type": "lora x",
    "tokenizer.ggml.model": "llama gpt2 bert t5 rwkv plamo2 gemma4 none no_vocab replit x",
    "tokenizer.ggml.pre": "default llama-bpe qwen2 gpt-4o deepseek-llm tekken superbpe kimi-k2 x",
    "rope.scaling.type": "none linear yarn longrope x",
    "tensor_data_layout": "Meta AI original pth x",
}

# Without an architecture.
TOKEN_IDS = """
bos eos eot eom unknown seperator padding cls mask fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep
""".split()  # noqa: SIM905
TOKENIZER_FLAGS = """
add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces
normalizer.lowercase normalizer.strip_accents
""".split()  # noqa: SIM905
COUNTS = """
general.alignment general.quantization_version general.file_type split.no split.count
split.tensors.count tokenizer.ggml.token_type_count general.sampling.top_k
""".split()  # noqa: SIM905
