// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatLooksLikeASecretIsHidden(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"loading from s3://models/llama HF_TOKEN=hf_abcdefghijkl":      "loading from s3://models/llama HF_TOKEN=***",
		`{"api_key": "0123456789", "model": "m"}`:                      `{"api_key": "***", "model": "m"}`,
		"Authorization: Bearer abcdefgh":                               "Authorization: *** ***",
		"vllm serve m --api-key abcdefgh --port 8000":                  "vllm serve m --api-key *** --port 8000",
		"--api-key=abcdefgh":                                           "--api-key=***",
		"postgres://me:hunter2@db/x":                                   "postgres://***@db/x",
		"GET https://b.s3/x?X-Amz-Signature=0123abcd&X-Amz-Expires=60": "GET https://b.s3/x?X-Amz-Signature=***&X-Amz-Expires=60",
		"https://b.blob/x?sv=1&sig=abc%2Bdef":                          "https://b.blob/x?sv=1&sig=***",
		"used sk-0123456789abcdef here":                                "used *** here",
		"AKIAIOSFODNN7EXAMPLE is not allowed":                          "*** is not allowed",
		"password: hunter22":                                           "password: ***",
		"CUDA out of memory, max_tokens: 4096, token 12 of 20":         "CUDA out of memory, max_tokens: 4096, token 12 of 20",
		"exit status 3":                                                "exit status 3",
	} {
		require.Equal(t, want, Secrets(text))
	}
}
