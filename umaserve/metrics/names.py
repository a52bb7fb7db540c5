"""What each number of the scorecard is, in a line: ``docs/METRICS.md`` says more."""

from __future__ import annotations

# by the name that ``prometheus.exposition`` gives it, without the prefix
HELP = {
    "model_info": "Name of the model's file and what computes; always 1.",
    # load
    "uptime_s": "Seconds since the daemon started.",
    "active_sessions": "Requests that hold KV cells and are computed.",
    "queued": "Requests that wait to be begun.",
    "parked_sessions": "Requests that had KV cells, gave them up and wait.",
    "requests_total": "Requests taken.",
    "errors_total": "Errors sent to clients on the socket.",
    "tokens_generated_total": "Tokens generated for clients.",
    "prompt_tokens_total": "Tokens of the prompts accepted.",
    "prompt_tokens_computed_total": "Prompt tokens computed, in the ticks and beside them.",
    "cached_tokens_total": "Prompt tokens that were not computed: their KV was there.",
    "engine_restarts_total": "Engines that replaced one that died.",
    # ticks
    "batch_calls_total": "Ticks: one llama_decode each, with its sampling.",
    "last_batch_size": "Tokens in the newest tick.",
    "avg_batch": "Tokens a tick over the last minute.",
    "tokens_per_tick_decode": "Decoding rows a tick over the last minute.",
    "tokens_per_tick_prefill": "Prompt tokens a tick over the last minute.",
    "served_decoders": "Sessions that got a token in the newest tick.",
    "decode_ms": "Milliseconds inside libllama a tick.",
    "decode_ms_last": "Milliseconds inside libllama of the newest tick.",
    "decode_ms_ewma": "Milliseconds inside libllama a tick, running mean.",
    "decode_ms_p50": "Milliseconds inside libllama a tick, median of the last minute.",
    "decode_ms_p95": "Milliseconds inside libllama a tick, 95th percentile of the last minute.",
    "decode_ms_p99": "Milliseconds inside libllama a tick, 99th percentile of the last minute.",
    "tick_overhead_us_p50": "Microseconds of a tick outside libllama, median of the last minute.",
    "tick_overhead_us_p95": "Microseconds of a tick outside libllama, 95th percentile of the "
    "last minute.",
    "batch_size": "Tokens of a tick.",
    "cost_model_error": "Relative error of the predicted time of a tick, running mean.",
    # latency
    "p50_ms": "Milliseconds between two tokens of an answer, median of the last minute.",
    "p95_ms": "Milliseconds between two tokens of an answer, 95th percentile of the last minute.",
    "p99_ms": "Milliseconds between two tokens of an answer, 99th percentile of the last minute.",
    "worst_pause_ms": "Longest milliseconds between two tokens of an answer in the last minute.",
    "ttft_ms_p50": "Milliseconds from a request to its first token, median of the last minute.",
    "ttft_ms_p95": "Milliseconds from a request to its first token, 95th percentile of the "
    "last minute.",
    "ttf5_ms_p50": "Milliseconds from a request to its fifth token, median of the last minute.",
    "ttf5_ms_p95": "Milliseconds from a request to its fifth token, 95th percentile of the "
    "last minute.",
    "worst_pause_first_3s_ms": "Longest milliseconds between two tokens of an answer that began "
    "within 3 s of its first token, in the last minute.",
    "baseline_ms": "Milliseconds between tokens if the interactive sessions were alone.",
    "p95_over_baseline": "95th percentile of interactive times between tokens over their baseline.",
    "ttft_ms": "Milliseconds from a request to its first token.",
    "inter_token_ms": "Milliseconds between two tokens of an answer.",
    # programs
    "app_requests_total": "Requests taken of a program since it was seen first.",
    "app_active_requests": "Requests of a program that did not end.",
    "app_tokens_generated_total": "Tokens generated for a program since it was seen first.",
    "app_token_share": "A program's part of all tokens of the last ten seconds.",
    "app_cached_ratio": "Part of a program's prompt tokens that was in the KV cache.",
    "app_p95_ms": "Milliseconds between two tokens of a program's answers, 95th percentile.",
    # for load balancers
    "vllm:num_requests_waiting": "Requests that wait to be begun, of both lanes.",
    "vllm:num_requests_running": "Requests that hold KV cells and are computed.",
    "vllm:kv_cache_usage_perc": "Part of the KV cells that is in use: 0 to 1.",
    "uma_p95_headroom": "What is left to the latency cap: 1 as quick as alone, 0 at the cap.",
    "uma_bandwidth_headroom": "Part of the bandwidth budget that the ticks left free: 0 to 1.",
    # guard
    "latency_cap": "What p95_over_baseline is to stay at or below.",
    "prefill_guard_active": "1 when the newest tick left something out for interactive latency.",
    "skipped_prefill_due_to_latency_total": "Ticks in which a prompt could have run but for that.",
    "slow_tokens_total": "Interactive tokens later than the cap times the baseline.",
    "ticks_over_budget_total": "Ticks longer than the tick budget.",
    "slo_violations_ttft_total": "First tokens later than the slo of their request.",
    "slo_violations_tbt_total": "Later tokens that came after the slo of their request.",
    "preemptions_total": "Times that a session lost its place to another.",
    "aborted_chunks_total": "Chunks of prompts given up for an interactive request.",
    "aside_prompt_tokens_total": "Prompt tokens computed beside the ticks.",
    # bandwidth
    "sum_bmt_mb_per_token": "Estimated megabytes moved a generated token, over the last minute.",
    "bmt_estimate_last_mb": "Estimated megabytes moved by the newest tick.",
    "bmt_budget_gbps": "Gigabytes per second that the ticks may move.",
    "bmt_measured_gbps": "Estimated gigabytes per second of recent ticks inside libllama.",
    "bmt_limited_ticks_total": "Ticks that the bandwidth budget kept something out of.",
    # sampling
    "sampling_ms_last": "Milliseconds of sampling all rows of the newest tick.",
    "sampling_us_per_token": "Microseconds of sampling a row, over the last minute.",
    "logits_to_first_chunk_ms": "Milliseconds from logits to published tokens in the newest tick.",
    "overlap_active": "Share of ticks whose tokens were published during the next decode.",
    "copy_free_ratio": "Rows of logits sampled in place, of all sampled.",
    "copied_bytes_per_token": "Bytes of logits that were copied, a row.",
    # efficiency
    "tokens_per_s": "Tokens generated per second over the last minute.",
    "tokens_per_s_at_cap": "The same of those seconds only that held the latency cap.",
    "scheduler_efficiency": "Time inside libllama, of the ticks' time, over the last minute.",
    "gpu_idle_pct": "Percent of the time with work to do in which no decode was in flight.",
    "residency_churn_mb_per_token": "Megabytes of major page faults a generated token.",
    "rss_gb": "Resident memory of front and engine in 10^9 bytes.",
    "cpu_s_per_1k_tokens": "Processor seconds for a thousand generated tokens.",
    # cache
    "kv_cells_used": "KV cells in use.",
    "kv_cells_total": "KV cells of the context.",
    "kv_cache_resident_bytes": "Bytes of the KV cache in use.",
    "kv_cache_hit_ratio": "Prompt tokens found in the KV cache, of those accepted.",
    "kv_cache_evictions_total": "Times that a session lost its KV cells to another.",
}
