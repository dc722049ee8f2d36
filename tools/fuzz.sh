#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#  tools/fuzz.sh TIME PATTERN
#
# Fuzzes each FuzzX function that PATTERN matches, one after the other, for TIME.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=$1
pattern=$2
go=${GO:-go}

targets=$(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' -- */ |
	sed -E 's|^(.*)/[^/]*:[0-9]+:func (Fuzz.*)$|./\1 \2|' | sort -u | grep -E -- "$pattern") ||
	{ echo "error: no fuzz target matches $pattern" >&2 && exit 1; }

while read -r folder name; do
	echo "==> $name in $folder for $time"
	"$go" test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$folder" </dev/null
done <<<"$targets"
