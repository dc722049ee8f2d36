// SPDX-License-Identifier: Apache-2.0

package refusal

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/holdstate"
)

var update = flag.Bool("update", false, "write the table of statuses in docs/clients.md")

// shownAs returns a rule for Retry-After as shown in docs/clients.md.
func (r retryAfter) shownAs() string {
	switch {
	case r == quota:
		return "until it fits"
	case r < 0:
		return "N"
	case r == 0:
		return ""
	}
	return strconv.Itoa(int(r))
}

// begins returns a row of the table in docs/clients.md without its text.
func (r *row) begins() string {
	return strings.ReplaceAll(fmt.Sprintf("| %d | %#q | %s |", r.status, r.code, r.retryAfter.shownAs()), "  ", " ")
}

// docs/clients.md has every row of the table, in the same order.
func TestTheStatusesAreInTheDocs(t *testing.T) {
	t.Parallel()
	const path = "../../docs/clients.md"
	const begin, end = "<!-- statuses: begin -->\n", "| 499 |"
	var table strings.Builder
	table.WriteString("| status | code | `Retry-After` | when |\n| --- | --- | --- | --- |\n")
	for _, r := range rows {
		if r.when != "" {
			fmt.Fprintf(&table, "%s %s |\n", r.begins(), r.when)
		}
	}
	for _, r := range rows {
		require.Contains(t, table.String(), r.begins(), "no row describes %q", r.text)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + table.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./internal/refusal -update")
}

func TestTheLabelsAreInTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	_, row, _ := strings.Cut(string(text), "_admission_rejections_total`")
	row, _, _ = strings.Cut(row, "\n")
	for _, label := range Labels() {
		require.Contains(t, row, "`"+label+"`")
	}
}

// A message tells when to retry if Retry-After is set, unless it tells what to change.
func TestTextsAndRetryAfterAgree(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		says := strings.Contains(r.text, "$retry") || strings.Contains(r.text, "make it shorter")
		require.Equal(t, r.retryAfter != 0, says, r.text)
		require.NotContains(t, r.text, "%", "Envoy's own errors take it as a format")
		os.Expand(r.text, func(name string) string {
			require.Contains(t, []string{"model", "detail", "retry"}, name, r.text)
			return ""
		})
	}
}

// Envoy cannot send an answer with a status that it does not support.
func TestEnvoyKnowsTheStatuses(t *testing.T) {
	t.Parallel()
	for _, r := range rows {
		require.Contains(t, typev3.StatusCode_name, int32(r.status), r.text)
	}
}

func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	for why, want := range map[error]struct{ alone, held, label string }{
		holdstate.ErrFull:            {"503 model_waking 30", "503 model_waking 30", ""},
		holdstate.ErrExpired:         {"503 model_waking 7", "503 model_waking 7", ""},
		holdstate.ErrWakeFailed:      {"503 model_waking 7", "503 model_waking 7", ""},
		holdstate.ErrDraining:        {"503 draining 1", "503 draining 1", "draining"},
		holdstate.ErrNoQueue:         {"503 no_capacity 1", "503 no_capacity 1", "queue_full"},
		holdstate.ErrGateFull:        {"429 concurrency_limit_exceeded 1", "503 model_waking 30", "no_room"},
		holdstate.ErrTimeout:         {"504 request_timeout 0", "504 request_timeout 0", "queue_timeout"},
		holdstate.ErrTooLarge:        {"429 concurrency_limit_exceeded 1", "429 concurrency_limit_exceeded 1", "too_large"},
		holdstate.ErrOverShare:       {"429 rate_limit_exceeded 1", "429 rate_limit_exceeded 1", "over_share"},
		holdstate.ErrOverShareAlways: {"429 rate_limit_exceeded 60", "429 rate_limit_exceeded 60", "over_share"},
		holdstate.ErrTriesUsed:       {"502 backend_error 0", "502 backend_error 0", "tries_used_up"},
		os.ErrInvalid:                {"503 no_capacity 1", "503 no_capacity 1", "queue_full"},
	} {
		for held, want := range map[bool]string{false: want.alone, true: want.held} {
			got := For(fmt.Errorf("model m: %w", why), Wait{Model: "m", Held: held, Wakes: learned(7)})
			require.Equal(t, want, fmt.Sprint(got.Status, " ", got.Code, " ", got.RetryAfter), "%v, held: %v", why, held)
		}
		require.Equal(t, want.label, Label(why), why)
	}
	require.ElementsMatch(t, []string{"too_large", "over_share", "no_room", "queue_full", "queue_timeout", "tries_used_up", "draining"}, Labels())
}

// unlearned is a Wakes that has learned nothing.
type unlearned struct{ learned }

func (unlearned) Learned(string) (int, bool) { return 0, false }

// A client whose own timeout ended the wait may retry at once while nothing was
// learned, but not when the wake failed.
func TestRetryAfterAWake(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		why       error
		impatient bool
		wakes     Wakes
		want      int
	}{
		"the budget ended":                      {holdstate.ErrExpired, false, learned(7), 7},
		"the budget ended, nothing is learned":  {holdstate.ErrExpired, false, unlearned{30}, 30},
		"the client's time ended":               {holdstate.ErrExpired, true, learned(7), 7},
		"the client's time, nothing is learned": {holdstate.ErrExpired, true, unlearned{30}, 1},
		"the wake failed":                       {holdstate.ErrWakeFailed, true, unlearned{30}, 30},
	} {
		require.Equal(t, c.want, For(c.why, Wait{Impatient: c.impatient, Wakes: c.wakes}).RetryAfter, name)
	}
}
