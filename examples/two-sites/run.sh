#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs two sites that know each other, each with an Envoy and a holdgate serve; site b
# alone has an engine. With --once it sends a request itself, checks the answer and ends.
set -euo pipefail
umask 077

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
example=two-sites
. examples/parts.sh
declare -A ports urls

admin() { echo "unix://$dir/$1/admin.sock"; }

# start_site SITE HOST starts a site that clients reach by the name HOST.
start_site() {
	local site=$1 host=$2 at=$dir/$1
	mkdir "$at"
	run "holdgate serve of site $site" $hg serve --site-id "$site" --extproc-listen "unix://$at/extproc.sock" --relay "unix://$at/relay.sock" \
		--agents-listen "unix://$at/agents.sock" --admin-listen "$(admin "$site")" \
		--auth-file "$dir/keys.yaml" --hop-secret-file "$dir/hop-secret" --log-format text --log-level warn
	$hg envoy render --edge-listen 127.0.0.1:0 --lanes-dir "$at" --output "$at/envoy.yaml"
	run "Envoy of site $site" "${HOLDGATE_ENVOY:-envoy}" -c "$at/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error
	until_ok test -S "$at/admin.sock"
	until_ok edge_port "$site" >"$at/port"
	ports[$site]=$(<"$at/port")
	urls[$site]=http://$host:${ports[$site]}
}

# state SITE prints warm if a site serves the model, else cold.
state() {
	local status
	status=$($hg status --admin "$(admin "$1")")
	if grep -q '^hello  *warm' <<<"$status"; then echo warm; else echo cold; fi
}

is_warm() { [[ $(state b) == warm ]]; }

# push writes the map of both sites to each, with a hint of what the other one has. This
# is the work of a map writer.
push() {
	local site other
	for site in a b; do
		other=$([[ $site == a ]] && echo b || echo a)
		$hg map push --admin "$(admin "$site")" -f - >/dev/null <<-END
			{"sites": [{"id": "a", "url": "${urls[a]}", "insecure": true}, {"id": "b", "url": "${urls[b]}", "insecure": true}],
			 "placements": [{"model": "hello", "kind": "chat", "site": "a", "scale_from_zero": true},
			                {"model": "hello", "kind": "chat", "site": "b", "scale_from_zero": true}],
			 "hints": [{"model": "hello", "kind": "chat", "site": "$other", "state": "$(state "$other")", "observed_at": "$(date -u +%FT%TZ)"}]}
		END
	done
}

# Both sites have the same keys file and the same secret.
keygen=$($hg keygen --tenant demo --id demo)
key=${keygen%%$'\n'*}
{ echo keys: && tail -n +3 <<<"$keygen"; } >"$dir/keys.yaml"
$hg keygen --tenant secret | head -n 1 >"$dir/hop-secret" # a key is long enough for a secret

# Clients drop the Authorization header when the host changes, so the sites have
# different ones.
start_site a 127.0.0.1
start_site b localhost
run 'the engine' "${HOLDGATE_PYTHON:-python3}" examples/two-sites/engine.py "$dir/engine-port"
until_ok test -s "$dir/engine-port"
run 'the agent' $hg agent --router "unix://$dir/b/agents.sock" --backend-url "http://127.0.0.1:$(<"$dir/engine-port")" \
	--model hello --capability llm --capacity 4 --log-level warn
until_ok is_warm
push

body='{"model": "hello", "messages": [{"role": "user", "content": "Who are you?"}]}'
ask=(curl -L "${urls[a]}/v1/chat/completions" -H 'content-type: application/json' -H "authorization: Bearer $key" -d "$body")

if [[ ${1-} == --once ]]; then
	answer=$("${ask[@]}" --silent --show-error --fail --max-time 20 --write-out '\n%{num_redirects} %{url_effective}')
	[[ $answer == *'"hello from site b"'* && $answer == *$'\n'"1 ${urls[b]}/"* ]] || { echo "two-sites: the answer is $answer" >&2; exit 1; }
	echo "asked ${urls[a]}, was redirected to ${urls[b]}: hello from site b"
	exit
fi

cat <<END
Two sites run. Site a, ${urls[a]}, has no engine; site b, ${urls[b]}, has one.
A request to site a follows its redirect to site b:

  ${ask[0]} ${ask[1]} ${ask[2]} \\
    -H '${ask[4]}' -H '${ask[6]}' \\
    -d '$body'

Why, and what site a knows:

  $hg explain --admin $(admin a) --model hello --key demo
  $hg status --admin $(admin a)

Without the agent of site b both sites are cold, and site a holds the request:

  kill ${pids[the agent]}

Ctrl-C ends everything.
END
while true; do
	sleep 2 &
	wait $! # a signal ends this at once
	check 'the agent'
	push
done
