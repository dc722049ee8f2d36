// SPDX-License-Identifier: Apache-2.0

// Package enginestest has what engines answer, for tests.
package enginestest

// Answers are the answers of each engine, by its name and path, as its documentation, its source or,
// for llama.cpp, the engine itself shows them.
var Answers = map[string]map[string]string{
	"vllm": {
		"/health": "",
		"/v1/models": `{"object":"list","data":[
			{"id":"llama","object":"model","created":1764000000,"owned_by":"vllm","root":"meta-llama/Llama-3.1-8B","parent":null,"max_model_len":131072,"permission":[{"id":"modelperm-1","object":"model_permission","allow_sampling":true}]},
			{"id":"sql-lora","object":"model","created":1764000000,"owned_by":"vllm","root":"/loras/sql","parent":"llama","permission":[]}]}`,
		"/metrics": `# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
vllm:num_requests_running{engine="1",model_name="llama"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="llama"} 0.0
vllm:num_requests_waiting{engine="1",model_name="llama"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="llama"} 0.75
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="llama"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="llama"} 9.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="llama"} 9.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="llama"} 1.5
`,
	},
	"sglang": {
		"/health":    "",
		"/v1/models": `{"object":"list","data":[{"id":"llama","object":"model","created":1764000000,"owned_by":"sglang","root":"llama","parent":null,"max_model_len":131072}]}`,
		"/metrics": `# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="llama",pp_rank="0",tp_rank="0"} 7.0
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="llama",pp_rank="0",tp_rank="0"} 0.5
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="llama",pp_rank="0",tp_rank="0"} 2.0
`,
	},
	"ollama": {
		"/":            "Ollama is running",
		"/api/version": `{"version":"0.12.6"}`,
		"/api/tags": `{"models":[
			{"name":"nomic-embed-text:latest","model":"nomic-embed-text:latest","modified_at":"2025-10-03T23:34:03.4-07:00","size":274302450,"digest":"0a10","capabilities":["embedding"],"details":{"parent_model":"","format":"gguf","family":"nomic-bert","families":["nomic-bert"],"parameter_size":"137M","quantization_level":"F16"}},
			{"name":"llama","model":"llama","modified_at":"2025-10-02T23:34:03.4-07:00","size":3338801804,"digest":"a2af","capabilities":["completion","tools"],"details":{"parent_model":"","format":"gguf","family":"llama","families":["llama"],"parameter_size":"4.3B","quantization_level":"Q4_K_M"}}]}`,
	},
	"llamacpp": {
		"/health":    `{"status":"ok"}`,
		"/v1/models": `{"models":[{"name":"llama","model":"llama","modified_at":"","size":"","digest":"","type":"model","capabilities":["completion"],"details":{"format":"gguf"}}],"object":"list","data":[{"id":"llama","aliases":["llama"],"tags":[],"object":"model","created":1796011967,"owned_by":"llamacpp","meta":{"n_ctx":512}}]}`,
		"/metrics": `# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 42
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 7
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
`,
		"/slots": `[{"id":0,"n_ctx":512,"speculative":false,"is_processing":true,"id_task":4},{"id":1,"n_ctx":512,"speculative":false,"is_processing":false}]`,
	},
	"infinity": {
		"/health": `{"unix":1764000000.5}`,
		"/models": `{"data":[
			{"id":"ranker","stats":{"queue_fraction":0.0,"queue_absolute":0,"results_pending":0,"batch_size":32},"object":"model","owned_by":"infinity","created":1764000000,"backend":"torch","capabilities":["rerank"]},
			{"id":"bge","stats":{"queue_fraction":0.00006,"queue_absolute":2,"results_pending":3,"batch_size":32},"object":"model","owned_by":"infinity","created":1764000000,"backend":"torch","capabilities":["embed"]}],"object":"list"}`,
	},
	"tei": {
		"/health": "",
		"/info":   `{"model_id":"thenlper/gte-base","model_sha":"fca1","model_dtype":"float16","model_type":{"embedding":{"pooling":"cls"}},"max_concurrent_requests":512,"max_input_length":512,"max_batch_tokens":2048,"max_batch_requests":null,"max_client_batch_size":32,"auto_truncate":false,"tokenization_workers":4,"version":"1.8.2","sha":null,"docker_label":null}`,
		"/metrics": `# TYPE te_request_count counter
te_request_count{method="single"} 12

# TYPE te_queue_size gauge
te_queue_size 2

# TYPE te_batch_next_size histogram
te_batch_next_size_bucket{le="1"} 3
te_batch_next_size_bucket{le="+Inf"} 4
te_batch_next_size_sum 6
te_batch_next_size_count 4

`,
	},
	"custom": {
		"/health":    "",
		"/v1/models": `{"object":"list","data":[{"id":"llama","object":"model"}]}`,
	},
}
