#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks rules of this project that no linter covers. Prints each file that breaks one.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0
git rev-parse --is-inside-work-tree >/dev/null

# fault TEXT reads names of files and prints each with TEXT.
fault() {
	local file
	while read -r file; do
		printf '%s: %s\n' "$file" "$1" >&2
		failed=1
	done
}

# files PATTERN... lists the files of the project, including those not yet committed.
files() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do [[ ! -f $f ]] || echo "$f"; done; }

# without TEXT reads names of files and prints those that lack TEXT in their
# first two lines.
without() {
	local file
	while read -r file; do
		head -n 2 "$file" | grep -q -- "$1" || echo "$file"
	done
}

# The license line is there for tools to find.
fault 'does not begin with the SPDX line' < <(
	files '*.go' '*.proto' '*.sh' '*.py' '*.mjs' Makefile .ci/run | without 'SPDX-License-Identifier: Apache-2.0'
)

# A sleep belongs in a bubble of testing/synctest, or in tests of real processes.
fault 'sleeps outside of testing/synctest' < <(
	files '*_test.go' | xargs -r grep -l 'time\.Sleep(' | xargs -r grep -LE '"testing/synctest"|^//go:build e2e'
)

# Such a test would never run.
fault 'is for Envoy but make e2e does not run it: see E2E_PACKAGES in the Makefile' < <(
	files '*_test.go' | xargs -r grep -l '^//go:build e2e' | grep -vE '^(e2e|envoy)/'
)

# An agent runs beside its engine, without the router.
fault 'is imported by agentreg/agent, which needs nothing of the router' < <(
	go list -deps ./agentreg/agent | sed -n 's|^github.com/holdgate/holdgate/||p' |
		grep -vE '^(agentreg/(agent(/.*)?|agentregpb|protocol)|internal/(certs|descriptors|mask|proc|regular|reload|settings|target|unixsocket))$' || true
)

# A reader follows docs/architecture.md from file to file.
fault 'is named in docs/architecture.md, and does not exist' < <(
	grep -oE '`[a-z][a-z0-9_/]*/[a-z0-9_]+\.go`' docs/architecture.md | tr -d '`' | sort -u |
		while read -r file; do [[ -f $file ]] || echo "$file"; done
)

exit $failed
