// Package standin runs k6 scripts without k6, to test the scripts: each line of them runs, and their checks and
// thresholds are judged. It is not a load generator.
//
// It goes through the life of a test as k6's documentation describes it: the init code once per user, setup(), a few
// iterations of every scenario, teardown(), the thresholds, handleSummary(). Users of all scenarios run at the same
// time; a scenario's progress goes evenly from 0 to 1 over its iterations, so that scripts that act by progress go
// through all their phases. Rates and durations are not kept. It knows the parts of k6's modules that our scripts
// use; anything else is an error. It was written from the public documentation and shares no code with k6.
package standin
