.PHONY: help setup build run demo test test-versions fuzz race lint tidy module bench bench-quick figures loadtest
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
# "./..." ends where the next go.mod begins, so what is for all of the code runs in the folder of each.
MODULES = $(sort $(dir $(shell find . -name node_modules -prune -o -name go.mod -print)))
in_each_module = @for module in $(MODULES); do (cd $$module && $(1)) || exit 1; done

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing: PostgreSQL's programs and the Go modules
	@./.ci/postgresql
	$(call in_each_module,go mod download)

build: ## bin/pipeline and bin/lab
	go build -o bin/ ./cmd/pipeline ./cmd/lab

run: setup build ## a pipeline on http://127.0.0.1:8080 with a private PostgreSQL under .pipeline
	bin/pipeline run

demo: setup build ## the main job from nothing: a shop's day, stored, decided, sent, and the books
	bin/lab demo

test: setup ## all tests, on real PostgreSQL
	@./.ci/node
	@./.ci/chromium
	@./.ci/pgbouncer
	@./.ci/promtool
	$(call in_each_module,go test ./...)
	@$(MAKE) --no-print-directory fuzz

VERSIONS ?= 14 15 16 17 18
DATABASE_TESTS = $(addprefix ./pipeline/,schema copyin claim evaluate deliver retain) ./tests/outbox ./tests/inbox \
  ./internal/jsontext ./internal/pgsession ./internal/pgtx
test-versions: ## the tests on a database, on each major version of PostgreSQL: make test-versions VERSIONS="14 18"
	@for version in $(VERSIONS); do \
	  bin="$$(./.ci/postgresql-version $$version)" && echo "PostgreSQL $$version" && \
	  PIPELINE_TEST_POSTGRES="$$bin" go test $(DATABASE_TESTS) || exit 1; done

fuzz: ## every fuzz target, FUZZTIME=5000x inputs or for example 5m
	@git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go' | sed 's/:func / /' | while read -r file name; do \
	  (cd "$${file%/*}" && go test -run '^$$' -fuzz "^$$name$$" -fuzztime $${FUZZTIME:-5000x} .) || exit 1; done

race: setup ## all tests under the race detector
	@./.ci/node
	@./.ci/chromium
	@./.ci/pgbouncer
	$(call in_each_module,go test -race ./...)

lint: ## gofmt, lines of at most 120 characters, go vet, staticcheck
	@out="$$(gofmt -l .)"; test -z "$$out" || { echo "gofmt -w needed:"; echo "$$out"; exit 1; }
	@out="$$(git ls-files -z '*.go' | LC_ALL=C.UTF-8 xargs -0 perl -CSD -ne 'chomp; print "$$ARGV:$$.\n" if length > 120; close ARGV if eof')"; \
	  test -z "$$out" || { echo "lines over 120 characters:"; echo "$$out"; exit 1; }
	$(call in_each_module,go vet ./...)
	$(call in_each_module,go run $(STATICCHECK) ./...)

tidy: ## go mod tidy in every module, after a change of imports
	$(call in_each_module,go mod tidy)

module: ## another module path everywhere: make module NAME=git.example.org/you/sluice
	@case "$(NAME)" in *[!A-Za-z0-9._~/-]*) false;; [!/]*.*/[!/]*) ;; *) false;; esac || \
	  { echo "make module NAME=host.domain/path: a path whose first part has a dot" >&2; exit 2; }
	@export OLD="$$(GOWORK=off go list -m)" NEW="$(NAME)"; \
	  git grep -lzIF "$$OLD" | xargs -0 perl -pi -e 's/\Q$$ENV{OLD}\E/$$ENV{NEW}/g'
	@gofmt -w $$(git ls-files '*.go')

bench: setup build ## each path beside its floor, about 10 minutes: a table here, and bench/out/report.json
	bin/lab bench
	go test -run '^$$' -bench FollowTheAdvice -benchtime 1x ./bench/capacity
	go test -run '^$$' -bench 'Decode|Scan|Encode|Decide' -benchtime 200ms -count 5 ./pipeline/... | tee bench/out/hot-functions.txt

figures: setup build ## the same, and its tables put into docs/performance.md
	bin/lab bench --figures docs/performance.md

bench-quick: setup build ## the same in two minutes, with a wider spread
	bin/lab bench --quick

SCRIPT ?= smoke
loadtest: setup build ## load by k6, which you have to install: make loadtest SCRIPT=ramp; loadtest/README.md lists the scripts
	go build -C loadtest -o ../bin/loadtest ./run
	bin/loadtest -script $(SCRIPT)
