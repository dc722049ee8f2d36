# SPDX-License-Identifier: Apache-2.0
#
# Requires Go 1.21 or newer, which downloads the Go version below by itself, and
# Python 3.10 or newer with venv. The tests also require a C compiler for the race
# detector, and apt-get, or Prometheus, nginx, HAProxy and Chromium on PATH; they use Node
# if it is installed. tools/setup.sh installs everything else below .tools/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

GO ?= go
GO_VERSION := go1.27.3
export GOTOOLCHAIN := $(GO_VERSION)

TOOL := $(GO) tool -modfile=tools/go.mod
TOOLS := $(abspath .tools)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
ENVOY_PACKAGES := ./e2e/... ./envoy/...
E2E_PACKAGES := $(ENVOY_PACKAGES) ./internal/shared/... ./internal/site/...
# Oldest first: the oldest supported version, then the last patch of each later minor version.
ENVOY_VERSIONS ?= 1.37.0 1.38.3 1.39.3 1.40.0

# The race detector keeps each test program for a second at its end, unless told otherwise.
RACE = GORACE=atexit_sleep_ms=100

# The API server's packages are most of what validates manifests. To optimize them takes longer
# than it saves.
QUICK_BUILD = -gcflags='k8s.io/...=-N -l'

# Environment with the paths of the tools below .tools/.
ENV = HOLDGATE_ENVOY='$(TOOLS)/bin/envoy' HOLDGATE_TOOLS='$(TOOLS)' HOLDGATE_PYTHON='$(TOOLS)/venv/bin/python' \
	HOLDGATE_VALKEY='$(TOOLS)/bin/valkey-server'

# The tests that oldest-envoy runs: what crosses Envoy in each shape. The rest of Holdgate does not
# depend on Envoy's version.
OLDEST_TESTS := ^Test(ByRoute|Picker|APool|PlainEnvoy|EnvoyGateway|Istio|LLMD|EveryPath|TheCheckOf)|OnTheWire|EachBody|EverySize|Compressed|Trailers|Refuses|ThatDie|TwoEnginesDied|ResponseMode|Untouched|Lanes|CORS|Attempt|Header|Repl

# The tests that soak-routers runs.
SOAK_TESTS := TestManyHeld|TestASiteIsRestarted|TestTheCrashesOfASite|TestThreeRouters|Takeover|TestAServerThatIs|TestNoHistory

# Settings for one call, such as `make fuzz FUZZ_TIME=5m`.
FUZZ ?= .
FUZZ_TIME ?= 30s
FLAKY_COUNT ?= 20
GROUPS_TIME ?= 5m
OLD_ENVOY ?= 1.36.4
SOAK_SECONDS ?= 180
DIFFERENTIAL ?= 5000
CHAIN ?= 10000
GATEWAY_VERSIONS ?= v1.7.2 v1.8.3
PKG ?= ./...
RUN ?= .
BENCH_FLAGS ?=
VULN_DB ?=

##@ Use

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: go ## build bin/holdgate
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o bin/holdgate ./cmd/holdgate

run: build tools ## serve a small model that sleeps until a request comes; Ctrl-C ends it
	@$(ENV) bin/holdgate up examples/local/models.yaml

demo: build tools ## show how a sleeping model answers real requests, in under a minute
	@$(ENV) $(GO) run ./examples/demo

two-sites: build tools ## run two sites, one with an engine and one that redirects to it; Ctrl-C ends them
	@$(ENV) examples/two-sites/run.sh

three-routers: build tools-routers ## run three routers of one site with one Valkey and two engines; Ctrl-C ends them
	@$(ENV) examples/many-routers/run.sh

##@ Test

test: unit e2e ## run all tests: unit, then e2e

unit: go ## run the unit tests, with the race detector
	$(RACE) $(GO) test -race -shuffle=on -p 2 -run '$(RUN)' $(PKG)

e2e: build tools-test ## run the tests with the real Envoy, engine and clients
	$(ENV) $(GO) test -tags e2e -p 1 -count=1 -timeout 25m -run '$(RUN)' $(E2E_PACKAGES)

# Browsers see the admin API without Envoy, so their tests run once.
e2e-matrix: build tools-test ## run the e2e tests with each Envoy of ENVOY_VERSIONS
	@for version in $(ENVOY_VERSIONS); do \
		envoy=$$(tools/envoy.sh $$version); echo "===== Envoy $$version"; \
		$(ENV) HOLDGATE_ENVOY=$$envoy $(GO) test -tags e2e -p 1 -count=1 -timeout 25m -run '$(RUN)' -skip '^Test(ThePage|NoNameRunsInThePage)' $(ENVOY_PACKAGES); \
	done

oldest-envoy: ## run the tests of what crosses Envoy with the oldest of ENVOY_VERSIONS
	$(MAKE) e2e-matrix ENVOY_VERSIONS='$(firstword $(ENVOY_VERSIONS))' RUN='$(OLDEST_TESTS)'

differential: build tools-test ## send DIFFERENTIAL (5000) generated requests over each path and compare what arrives
	$(ENV) HOLDGATE_DIFFERENTIAL='$(DIFFERENTIAL)' $(GO) test -tags e2e -count=1 -timeout 2h -v -run TestEveryPathCarriesTheSame ./e2e

chain: build tools-test ## send CHAIN (10000) requests through each Envoy of ENVOY_VERSIONS, before other pickers, and compare what arrives
	@for version in $(ENVOY_VERSIONS); do \
		envoy=$$(tools/envoy.sh $$version); echo "===== Envoy $$version"; \
		$(ENV) HOLDGATE_ENVOY=$$envoy HOLDGATE_CHAIN='$(CHAIN)' $(GO) test -tags e2e -count=1 -timeout 2h -v -run TestChainsUnderLoad ./e2e; \
	done

old-envoy: build tools-test ## hold requests in an Envoy before 1.37 (OLD_ENVOY), which takes no keepalives
	$(ENV) HOLDGATE_OLD_ENVOY="$$(tools/envoy.sh $(OLD_ENVOY))" $(GO) test -tags e2e -count=1 -v -run TestOldEnvoy ./e2e

groups: build tools ## send random traffic to four models with room for one, for GROUPS_TIME (5m)
	$(ENV) GROUPS_TIME='$(GROUPS_TIME)' $(GO) test -tags e2e -count=1 -timeout 25m -v -run TestAGroupForMinutes ./e2e

soak-routers: build tools-test ## run the tests of three routers in their long forms, and restart their parts for SOAK_SECONDS (180)
	$(ENV) HOLDGATE_HELD=1000 HOLDGATE_SOAK_SECONDS='$(SOAK_SECONDS)' HOLDGATE_TAKEOVERS=10 HOLDGATE_QUOTA_TIME=30s HOLDGATE_HISTORIES=100000 \
		$(GO) test -tags e2e -p 1 -count=1 -timeout 45m -v -run '$(SOAK_TESTS)' ./e2e ./internal/site ./agentreg/agent/divide

failures: build tools-test ## let a router on another machine fail in each way, and print what clients get
	$(ENV) HOLDGATE_FAILURES=1 $(GO) test -tags e2e -count=1 -timeout 15m -parallel 5 -v -run TestNetworkFailureTable ./e2e | grep -a 'TABLE\|FAIL\|^ok'

fuzz: go ## fuzz each target that FUZZ matches for FUZZ_TIME (30s)
	tools/fuzz.sh '$(FUZZ_TIME)' '$(FUZZ)'

flaky: go ## run the unit tests FLAKY_COUNT (20) times
	$(RACE) $(GO) test -race -shuffle=on -count=$(FLAKY_COUNT) -p 2 -run '$(RUN)' $(PKG)

bench: build tools ## measure the cost of Holdgate compared with Envoy alone and with the floor
	@$(ENV) $(GO) run ./bench speed $(BENCH_FLAGS)
	@$(ENV) $(GO) run ./bench need
	@$(ENV) $(GO) run ./bench wake
	@$(ENV) $(GO) run ./bench memory
	@$(ENV) $(GO) run ./bench scale

bench-smoke: build tools ## run each benchmark once, to check that it works
	$(ENV) $(GO) test -run '^$$' -bench . -benchtime 1x -p 2 ./...
	$(ENV) $(GO) run ./bench -quick
	$(ENV) $(GO) run ./bench need -repeats 5
	$(ENV) $(GO) run ./bench scale -quick

##@ Code

lint: go ## run the linters
	tools/checks.sh
	$(TOOL) golangci-lint run
	$(TOOL) buf lint
	@dead=$$($(TOOL) deadcode -tags e2e ./...); \
	if grep -vE '^[^:]*test/' <<< "$$dead" | grep .; then \
		echo 'error: unreachable from any program: delete it, or move it to a _test.go file if tests need it' >&2; exit 1; \
	fi

fix: go ## apply the automatic fixes of lint
	$(TOOL) golangci-lint run --fix

manifests: build ## validate all Kubernetes manifests: printed ones, examples, and those on pages
	$(GO) -C tools/manifests vet $(QUICK_BUILD) ./...
	$(GO) -C tools/manifests test $(QUICK_BUILD) -count=1 ./...
	$(GO) -C tools/manifests build $(QUICK_BUILD) -o ../../bin/manifests .
	@for flags in 'envoy-gateway --gateway g --route r' 'envoy-gateway --gateway g --route r --destination endpoint' 'ai-gateway --gateway g --route r' \
		'istio --gateway g' 'llm-d --engines e:8000' 'llm-d --gateway g --destination route'; do \
		echo "holdgate envoy render --for $$flags"; \
		bin/holdgate envoy render --namespace models --extproc holdgate.models.svc.cluster.local:9001 --tls-secret s --for $$flags | (cd tools/manifests && ../../bin/manifests -); \
	done

manifests-versions: manifests ## validate what is printed against each version of Envoy Gateway in GATEWAY_VERSIONS
	@for version in $(GATEWAY_VERSIONS); do \
		module=$$($(GO) -C tools/manifests mod download -json github.com/envoyproxy/gateway@$$version | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
		echo "Envoy Gateway $$version"; \
		(cd tools/manifests && ../../bin/manifests -crds "$$(find "$$module/charts/gateway-helm" -path '*/crds/generated')" ../../internal/manifest/testdata/*.yaml); \
	done

translate: go ## write what Envoy Gateway makes of the manifests, for the e2e tests; builds for many minutes
	$(GO) -C tools/translate test ./...
	$(GO) -C tools/translate run .

vet: go ## run go vet
	$(GO) vet ./...
	$(GO) vet -tags e2e ./...

fmt: go ## format the code
	$(TOOL) golangci-lint fmt
	$(TOOL) buf format --write

fmt-check: go ## fail if the code is not formatted
	$(TOOL) golangci-lint fmt --diff
	$(TOOL) buf format --diff --exit-code

vuln: go ## look for known vulnerabilities in the dependencies; VULN_DB names another database
	$(TOOL) govulncheck $(if $(VULN_DB),-db '$(VULN_DB)') ./...

generate: go ## generate the Go code of the agent protocol
	$(TOOL) buf generate

check: ## do what CI does, then fail if that changed the tree
	@before=$$(git status --porcelain; git diff | cksum); \
	$(MAKE) fmt-check vet lint generate manifests test bench-smoke; \
	[[ $$before == "$$(git status --porcelain; git diff | cksum)" ]] || \
		{ echo 'error: the tree has changed:' >&2; git status --short >&2; exit 1; }

##@ Tools

tools: ## install what Holdgate needs to run below .tools/
	@tools/setup.sh run

tools-routers: ## also install Valkey
	@tools/setup.sh routers

tools-test: ## also install what the e2e tests need
	@tools/setup.sh test

clean: ## remove the build output
	rm -rf bin

clean-tools: ## remove the installed tools
	rm -rf .tools e2e/clients/node/node_modules

go:
	@found=$$($(GO) env GOVERSION) || found=none; [[ $$found == $(GO_VERSION)* ]] || \
		{ echo "error: Go 1.21 or newer is required, which downloads $(GO_VERSION) by itself; found: $$found" >&2; exit 1; }

.PHONY: help build run demo two-sites three-routers test unit e2e e2e-matrix oldest-envoy differential chain old-envoy groups soak-routers fuzz flaky bench bench-smoke lint fix manifests manifests-versions translate vet fmt fmt-check vuln generate check \
	tools tools-routers tools-test clean clean-tools go
