.PHONY: help setup build run demo test fuzz race lint bench loadtest
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing: PostgreSQL's programs and the Go modules
	@./.ci/postgresql
	@go mod download

build: ## bin/pipeline
	go build -o bin/pipeline ./cmd/pipeline

run: setup build ## a pipeline on http://127.0.0.1:8080 with a private PostgreSQL under .pipeline
	bin/pipeline run

demo: setup build ## the main job from nothing: a shop's day, stored, decided, sent, and the books
	bin/pipeline demo

test: setup ## all tests, on real PostgreSQL
	@./.ci/node
	go test ./...
	@$(MAKE) --no-print-directory fuzz

fuzz: ## every fuzz target, FUZZTIME=5000x inputs or for example 5m
	@git grep -o '^func Fuzz[A-Za-z]*' -- '*_test.go' | sed 's/:func / /' | while read -r file name; do \
	  go test -run '^$$' -fuzz "^$$name$$" -fuzztime $${FUZZTIME:-5000x} "./$${file%/*}" || exit 1; done

race: setup ## all tests under the race detector
	@./.ci/node
	go test -race ./...

lint: ## gofmt, go vet, staticcheck
	@out="$$(gofmt -l .)"; test -z "$$out" || { echo "gofmt -w needed:"; echo "$$out"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

bench: setup ## the benchmarks, on real PostgreSQL
	go test -run '^$$' -bench . -benchtime 5x -timeout 15m ./bench/...

SCRIPT ?= smoke
loadtest: setup build ## load by k6, which you have to install: make loadtest SCRIPT=ramp; loadtest/README.md lists the scripts
	go run ./loadtest/run -script $(SCRIPT)
