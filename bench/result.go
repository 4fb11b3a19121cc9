package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Report is a whole run.
type Report struct {
	Command string        `json:"command"`
	Machine Machine       `json:"machine"`
	Took    time.Duration `json:"took_ns"`
	Results []Result      `json:"results"`
}

// Result is one path: what was reached, its floor in the same run, and how that compares with what is asked for.
type Result struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Unit   string `json:"unit"` // of work: event, message
	Rounds int    `json:"rounds"`
	// Rate is in units a second.
	Rate Spread `json:"rate"`
	CPU  CPU    `json:"cpu"`
	// Floor is what the same work costs without the program; nil where there is none.
	Floor   *Floor             `json:"floor,omitempty"`
	Latency *Latency           `json:"latency,omitempty"`
	Stages  map[string]float64 `json:"stages,omitempty"` // from the program's metrics; the key names the unit
	Books   Books              `json:"books"`
	Checks  []Check            `json:"checks,omitempty"`
	Note    string             `json:"note,omitempty"`
}

// Floor is a run that no program can be better than.
type Floor struct {
	Name string `json:"name"`
	Rate Spread `json:"rate"`
	CPU  CPU    `json:"cpu"`
	// Ratio is the path's rate over the floor's, of rounds that ran right after each other.
	Ratio Spread `json:"ratio"`

	rates []float64
}

// Spread is the median of some rounds with the lowest and the highest.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	v = slices.Sorted(slices.Values(v))
	middle := v[len(v)/2]
	if len(v)%2 == 0 {
		middle = (middle + v[len(v)/2-1]) / 2
	}
	return Spread{Median: middle, Low: v[0], High: v[len(v)-1]}
}

// Check compares a figure with what is asked for. It fails no run: the machine may be busy.
type Check struct {
	What  string  `json:"what"`
	Got   Spread  `json:"got"`
	Unit  string  `json:"unit,omitempty"`
	Bound float64 `json:"bound"`
	// Floor is true where Bound is the least that is asked for; otherwise it is the most.
	Floor bool `json:"bound_is_floor"`
}

// Met reports whether the median is what is asked for.
func (c Check) Met() bool {
	if c.Floor {
		return c.Got.Median >= c.Bound
	}
	return c.Got.Median <= c.Bound
}

func (c Check) String() string {
	unit := c.Unit
	if unit != "" {
		unit = " " + unit
	}
	kind, missed := "at most", "ABOVE"
	if c.Floor {
		kind, missed = "floor", "BELOW"
	}
	verdict := "met"
	if !c.Met() {
		verdict = missed
	}
	return fmt.Sprintf("%s %s%s, %s %s%s: %s", c.What, figure(c.Got.Median), unit, kind, figure(c.Bound), unit, verdict)
}

// figure prints three digits that count.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Err joins what was lost, doubled or otherwise does not add up; nil where all books balance.
func (r *Report) Err() error {
	var errs []error
	for _, res := range r.Results {
		if err := res.Books.Err(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", res.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Missed lists the checks that were not met.
func (r *Report) Missed() (missed []string) {
	for _, res := range r.Results {
		for _, c := range res.Checks {
			if !c.Met() {
				missed = append(missed, res.Name+": "+c.String())
			}
		}
	}
	return missed
}

// WriteJSON writes v for machines.
func WriteJSON(file string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	// Whole or not at all: a run may be interrupted, and goes on from this file.
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// thousands groups digits: 84,300.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	var parts []string
	for len(s) > 3 && s[len(s)-4] != '-' {
		parts, s = append([]string{s[len(s)-3:]}, parts...), s[:len(s)-3]
	}
	return strings.Join(append([]string{s}, parts...), ",")
}
