package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// scenario is one of the loads that a script describes.
type scenario struct {
	Executor        string            `json:"executor"`
	Exec            string            `json:"exec"`
	VUs             *float64          `json:"vus"`
	PreAllocatedVUs *float64          `json:"preAllocatedVUs"`
	MaxVUs          *float64          `json:"maxVUs"`
	Iterations      *float64          `json:"iterations"`
	Rate            *float64          `json:"rate"`
	StartRate       *float64          `json:"startRate"`
	TimeUnit        *string           `json:"timeUnit"`
	Duration        *string           `json:"duration"`
	GracefulStop    *string           `json:"gracefulStop"`
	Tags            map[string]string `json:"tags"`
	Stages          []struct {
		Target   *float64 `json:"target"`
		Duration *string  `json:"duration"`
	} `json:"stages"`
}

// fields are those that each executor has beside exec, tags and gracefulStop; those with ! it can't do without.
var fields = map[string][]string{
	"constant-vus":          {"vus", "duration!"},
	"per-vu-iterations":     {"vus", "iterations"},
	"constant-arrival-rate": {"rate!", "timeUnit", "duration!", "preAllocatedVUs!", "maxVUs"},
	"ramping-arrival-rate":  {"startRate", "timeUnit", "stages!", "preAllocatedVUs!", "maxVUs"},
}

// validate finds what k6 would not start with.
func (s *scenario) validate(raw json.RawMessage) error {
	known, ok := fields[s.Executor]
	if !ok {
		return fmt.Errorf("executor %q is none of %q", s.Executor, slices.Sorted(maps.Keys(fields)))
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains([]string{"executor", "exec", "tags", "gracefulStop"}, name) && !slices.Contains(known, name) &&
			!slices.Contains(known, name+"!") {
			errs = append(errs, fmt.Errorf("%s has no %s", s.Executor, name))
		}
	}
	for _, name := range known {
		if name, needed := strings.CutSuffix(name, "!"); needed && given[name] == nil {
			errs = append(errs, fmt.Errorf("%s needs %s", s.Executor, name))
		}
	}
	count := func(name string, v *float64, least float64) {
		if v != nil && (*v != float64(int64(*v)) || *v < least) {
			errs = append(errs, fmt.Errorf("%s is %g, not a whole number of at least %g", name, *v, least))
		}
	}
	duration := func(name string, v *string) {
		if v == nil {
			return
		}
		if d, err := time.ParseDuration(*v); err != nil || d < 0 {
			errs = append(errs, fmt.Errorf("%s is %q, no duration", name, *v))
		}
	}
	count("vus", s.VUs, 1)
	count("preAllocatedVUs", s.PreAllocatedVUs, 0)
	count("iterations", s.Iterations, 1)
	count("rate", s.Rate, 1)
	count("startRate", s.StartRate, 0)
	duration("timeUnit", s.TimeUnit)
	duration("duration", s.Duration)
	duration("gracefulStop", s.GracefulStop)
	for _, stage := range s.Stages {
		count("target", stage.Target, 0)
		duration("the duration of a stage", stage.Duration)
	}
	if s.PreAllocatedVUs != nil {
		count("maxVUs", s.MaxVUs, *s.PreAllocatedVUs)
	}
	return errors.Join(errs...)
}

// users is how many users the script asks for.
func (s *scenario) users() int {
	for _, v := range []*float64{s.VUs, s.PreAllocatedVUs} {
		if v != nil {
			return max(int(*v), 1)
		}
	}
	return 1
}
