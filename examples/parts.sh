# SPDX-License-Identifier: Apache-2.0
#
# Functions of the examples that run several processes. A script sources this file in the
# repository, with its name in $example.
# shellcheck shell=bash

hg=bin/holdgate
[[ -x $hg ]] || { echo "$example: $hg is missing: run make build" >&2; exit 1; }
dir=$(mktemp -d /tmp/hg.XXXXXX) # short, for the paths of sockets
declare -A pids

# stop ends the agents, which would complain of routers that are gone, and then the rest.
stop() {
	trap - EXIT INT TERM
	local name
	for name in "${!pids[@]}"; do
		[[ $name != *agent* ]] || kill "${pids[$name]}" 2>/dev/null || true
	done
	for name in "${!pids[@]}"; do
		[[ $name != *agent* ]] || wait "${pids[$name]}" 2>/dev/null || true
	done
	kill "${pids[@]}" 2>/dev/null || true
	wait
	rm -rf "$dir"
}
trap 'status=$?; stop; exit $status' EXIT
trap 'stop; exit 0' INT TERM

# run NAME COMMAND... starts a part, which ends with this script in any case. Each line that it
# writes is printed with its name, apart from those that match the sed pattern $omit.
run() {
	local name=$1
	shift
	setpriv --pdeathsig KILL "$@" > >(print_as "$name") 2>&1 &
	pids[$name]=$!
}

# print_as NAME prints its input with a name until the input ends: a signal does not end it, so
# that a part can write its last lines.
print_as() {
	trap '' INT TERM
	exec sed -u "/${omit:-^$}/d; s/^/$1: /" >&2
}

# runs NAME succeeds while a part runs.
runs() { kill -0 "${pids[$1]}" 2>/dev/null; }

# check fails if a part has ended, apart from those that are named.
check() {
	local name
	for name in "${!pids[@]}"; do
		runs "$name" || [[ " $* " == *" $name "* ]] || { echo "$example: $name ended by itself" >&2; exit 1; }
	done
}

# until_ok COMMAND... waits up to 30 s for a command to succeed.
until_ok() {
	local deadline=$((SECONDS + 30))
	until "$@"; do
		check
		((SECONDS < deadline)) || { echo "$example: not after 30 s: $*" >&2; exit 1; }
		sleep 0.05
	done
}

# edge_port NAME prints the port of the Envoy whose files are in $dir/NAME, once it is ready.
edge_port() {
	curl --silent --fail --unix-socket "$dir/$1/envoy.sock" http://envoy/ready >/dev/null &&
		curl --silent --unix-socket "$dir/$1/envoy.sock" http://envoy/listeners | sed -n 's/^edge::.*:\([1-9][0-9]*\)$/\1/p' | grep .
}
