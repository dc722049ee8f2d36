#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one site of three routers, each with its Envoy, one Valkey, and two engines that both
# serve a small model. A part that ends is started again. With --once it sends a request to
# each edge, kills a router, sends one to each of the others, and ends.
set -euo pipefail
umask 077

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
example=many-routers
. examples/parts.sh
declare -A ports again
omit='^\[engine-\|Memory overcommit' # what the engines say of each request, and a warning of Valkey
python=${HOLDGATE_PYTHON:-python3}

admin() { echo "unix://$dir/$1/admin.sock"; }

# free_port prints a port that nothing listens on.
free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start_valkey() {
	run Valkey "${HOLDGATE_VALKEY:-valkey-server}" --bind 127.0.0.1 --port "$valkey" --save '' --appendonly no --dir "$dir" --loglevel warning
}

# start_router N starts a router, which has its files in $dir/N.
start_router() {
	local at=$dir/$1
	rm -f "$at"/{extproc,agents,admin}.sock # of one that was killed
	run "router $1" $hg serve --config examples/many-routers/serve.yaml --shared "valkey://127.0.0.1:$valkey/0?prefix=site-1" \
		--extproc-listen "unix://$at/extproc.sock" --relay "unix://$at/relay.sock" --agents-listen "unix://$at/agents.sock" \
		--admin-listen "$(admin "$1")" --map-file "$at/map.json"
}

# start_envoy N starts the Envoy of a router. It keeps its port when it is started again.
start_envoy() {
	$hg envoy render --edge-listen "127.0.0.1:${ports[$1]-0}" --lanes-dir "$dir/$1" --output "$dir/$1/envoy.yaml"
	run "Envoy $1" "${HOLDGATE_ENVOY:-envoy}" -c "$dir/$1/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level error
}

# start_agent N starts an agent of all routers, which starts its engine on demand.
start_agent() {
	local name=engine-$1 n routers=()
	for n in 1 2 3; do routers+=(--router "unix://$dir/$n/agents.sock"); done
	run "agent $1" $hg agent --id "$name" "${routers[@]}" --engine llamacpp --backend-url "http://127.0.0.1:${ports[$name]}" \
		--exec "$python tools/llama_server.py --port ${ports[$name]}" --model smollm2 --capacity 2 --idle-timeout 60s --log-level warn
}

# known N succeeds when a router has both agents.
known() { [[ $($hg status --admin "$(admin "$1")" 2>/dev/null | grep -c '^engine-') == 2 ]]; }

valkey=$(free_port)
start_valkey
again[Valkey]=start_valkey
for n in 1 2 3; do
	mkdir "$dir/$n"
	start_router $n
	start_envoy $n
	again[router $n]="start_router $n" again[Envoy $n]="start_envoy $n"
done
for n in 1 2; do
	ports[engine-$n]=$(free_port)
	start_agent $n
	again[agent $n]="start_agent $n"
done
for n in 1 2 3; do
	until_ok edge_port $n >"$dir/$n/port"
	ports[$n]=$(<"$dir/$n/port")
	until_ok known $n
done
$hg map push --admin "$(admin 1)" -f examples/many-routers/map.json >/dev/null # it is in force at all routers

body='{"model": "smollm2", "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}'
url() { echo "http://127.0.0.1:${ports[$1]}/v1/chat/completions"; }

# ask N sends a request to an edge and checks that the model answers.
ask() {
	local answer
	answer=$(curl --silent --show-error --fail-with-body --max-time 60 "$(url "$1")" -H 'content-type: application/json' -d "$body") || true
	[[ $answer == *'"content"'* ]] || { echo "$example: edge $1 answers $answer" >&2; exit 1; }
	echo "edge $1 answers"
}

if [[ ${1-} == --once ]]; then
	for n in 1 2 3; do ask $n; done
	kill -KILL "${pids[router 1]}"
	echo 'router 1 is killed'
	for n in 2 3; do ask $n; done
	exit
fi

cat <<END
Three routers run, each with its Envoy, and one Valkey. The agents of two engines know all
routers; the engines sleep until a request comes. Send one to any of the edges:

  curl $(url 1) -H 'content-type: application/json' -d '$body'
  curl $(url 2) -H 'content-type: application/json' -d '$body'
  curl $(url 3) -H 'content-type: application/json' -d '$body'

Any router knows the site:

  $hg status --site --admin $(admin 3)
  curl --silent --unix-socket $dir/2/admin.sock http://localhost/metrics | grep hivenet_site_

A map that is pushed to one router is in force at all:

  $hg map push --admin $(admin 2) -f examples/many-routers/map.json
  $hg map get --admin $(admin 3)

Kill a router, or the Valkey: the other routers serve on, and it starts again after 5 s.

  kill -9 ${pids[router 1]}
  kill -9 ${pids[Valkey]}

Ctrl-C ends everything.
END
while true; do
	sleep 1 &
	wait $! # a signal ends this at once
	for name in "${!again[@]}"; do
		if ! runs "$name"; then
			echo "$name has ended, and starts again in 5 s"
			sleep 5 &
			wait $!
			${again[$name]}
			echo "$name runs again: process ${pids[$name]}"
		fi
	done
done
