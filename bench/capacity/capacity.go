// Package capacity turns measurements into advice: from sweeps of package bench and a target, the settings to use, what
// limits first and at what rate, and what the target takes in cores, memory, disk and connections.
//
// Every number carries the formula or the measurement that it comes from. What the measurements do not reach is said
// as an open question with the command that answers it, never guessed. It is pure: the same input gives the same plan.
package capacity

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"sluice.example/sluice/bench"
)

// Target is what is asked for.
type Target struct {
	Rate     float64       // events a second
	Matching float64       // share of events that become a message
	Receiver time.Duration // how long the receiver takes for an answer
	P99      time.Duration // of the answer to a client
	// Headroom is the share of every resource that stays free: for bursts, checkpoints, vacuum and a lost node.
	Headroom float64
	// NodeCores is for each machine that runs the program. 0: as measured.
	NodeCores int
	// Retention is how many days of events are kept.
	Retention float64
}

// Line is one piece of advice.
type Line struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Because string `json:"because"`
}

// Limit is where something runs out, in events a second.
type Limit struct {
	What    string  `json:"what"`
	Rate    float64 `json:"rate"`
	Because string  `json:"because"`
	// Tried is true where it is the end of what was tried, not of what the machine can do.
	Tried bool `json:"end_of_what_was_tried,omitempty"`
}

// Question is what the measurements can't answer, and the command that does.
type Question struct {
	What    string `json:"what"`
	Measure string `json:"measure"`
}

// Plan is the advice.
type Plan struct {
	Settings []Line `json:"settings"`
	// Limits are sorted, the first one first.
	Limits    []Limit    `json:"limits"`
	Needs     []Line     `json:"needs"`
	Questions []Question `json:"questions"`
	// Fits is true where one machine like the measured one, with PostgreSQL on it, is enough with the headroom.
	Fits bool `json:"fits_one_machine"`
	// Nodes is how many machines run the program, beside one for PostgreSQL where it does not fit.
	Nodes int `json:"nodes"`
	// Predicted is what one machine like the measured one reaches with these settings.
	Predicted float64 `json:"predicted_rate"`
	// Chosen are the settings by the names of the sweep.
	Chosen map[string]string `json:"chosen"`
}

// queryConnections is the program's default of database.connections, which a test of the program holds against this
// one. The stages' own defaults are asked of them.
const queryConnections = 6

// Make plans. deliver may be nil where delivery was not measured.
func Make(ingest, deliver *bench.Sweep, t Target) (*Plan, error) {
	point, knee := ingest.Choose(t.P99.Seconds() * 1000)
	if point == nil {
		return nil, fmt.Errorf("the ingest sweep has no point whose books balance: run it again")
	}
	p := &planner{Plan: &Plan{Chosen: point.Settings, Predicted: point.Rate.Median}, t: t, ingest: ingest, point: point}
	if p.t.NodeCores == 0 {
		p.t.NodeCores = ingest.Machine.Cores
	}
	p.planIngest(knee)
	if t.Matching > 0 {
		p.planDelivery(deliver)
	}
	p.planMachines()
	p.planStorage()
	p.sort()
	return p.Plan, nil
}

type planner struct {
	*Plan
	t      Target
	ingest *bench.Sweep
	point  *bench.Point
	// deliver is the point of the delivery sweep that stands for the target, nil where there is none.
	deliver *bench.Point
}

func (p *planner) set(name, value, because string, args ...any) {
	p.Settings = append(p.Settings, Line{name, value, fmt.Sprintf(because, args...)})
}

func (p *planner) need(name, value, because string, args ...any) {
	p.Needs = append(p.Needs, Line{name, value, fmt.Sprintf(because, args...)})
}

func (p *planner) limit(what string, rate float64, because string, args ...any) {
	p.Limits = append(p.Limits, Limit{What: what, Rate: rate, Because: fmt.Sprintf(because, args...)})
}

func (p *planner) ask(measure, what string, args ...any) {
	p.Questions = append(p.Questions, Question{fmt.Sprintf(what, args...), measure})
}

// free is the share that may be used.
func (p *planner) free() float64 { return 1 - p.t.Headroom }

func (p *planner) messages() float64 { return p.t.Rate * p.t.Matching }

func number(v float64) string {
	if v != math.Trunc(v) && math.Abs(v) < 10 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// count reads a number of a sweep's settings.
func count(text string) float64 {
	n, _ := strconv.Atoi(text) // the sweep has checked it
	return float64(n)
}

// planIngest takes batch, max-wait and writers from the knee, and tells what held the measured rate.
func (p *planner) planIngest(knee *bench.Knee) {
	s := p.point.Settings
	p.set("buffer.writers", s["writers"], "measured: %s", knee.Why)
	p.set("buffer.max-events", s["batch"], "measured: the same point")
	p.set("buffer.max-wait", s["max-wait"], "measured: the same point")
	p.set("database.connections", strconv.Itoa(queryConnections), "the default; the writers have a pool of their own")

	rate, cores := p.point.Rate.Median, float64(p.ingest.Machine.Cores)
	c := p.point.CPU
	busy := rate * (c.Program + c.PostgreSQL + c.Generator) / (cores * 1e6)
	writing := rate * p.point.Stages["transaction_us_per_event"] / (count(s["writers"]) * 1e6)
	why := fmt.Sprintf("%.0f %% of %g cores were busy (%s program, %s PostgreSQL, %s generator us an event), and the "+
		"writers were in a transaction %.0f %% of the time (COMMIT, which waits for WAL and fsync: %s of %s ms)",
		100*busy, cores, number(c.Program), number(c.PostgreSQL), number(c.Generator), 100*writing,
		number(p.point.Stages["commit_ms"]), number(p.point.Stages["transaction_ms"]))
	what := "the measured path"
	switch {
	case c.PostgreSQL == 0:
		p.ask("lab bench ingest on the database's machine", "PostgreSQL ran elsewhere, so its CPU is not known")
	case busy > 0.85:
		what = "CPU"
	case writing > 0.85:
		what = "WAL and fsync"
	default:
		p.ask(fmt.Sprintf("lab bench ingest --connections %d", 4*p.ingest.Base.Connections), "neither CPU nor writers "+
			"were used up at %s events/s; the clients may have been too few, or other programs took the CPU", number(rate))
	}
	p.limit(what+" of one machine with everything on it", rate, "measured: %s", why)

	if l := p.point.Latency; l != nil {
		switch {
		case l.P99 > p.t.P99.Seconds()*1000:
			p.ask(p.again("--rate "+number(min(p.t.Rate, rate/4))),
				"p99 was %s ms at %s events/s, over the %s asked for: a lower rate for each node, or a faster disk, may keep it",
				number(l.P99), number(p.point.LatencyRate), p.t.P99)
		case p.t.Rate > p.point.LatencyRate:
			p.ask(p.again("--rate "+number(p.t.Rate)), "p99 at %s events/s: it was measured at %s (%s ms)", number(p.t.Rate),
				number(p.point.LatencyRate), number(l.P99))
		default:
			p.need("p99 of the answer", number(l.P99)+" ms or less", "measured in an open loop at %s events/s",
				number(p.point.LatencyRate))
		}
	}
	if m := p.ingest.Base.Shape.Matching; math.Abs(m-p.t.Matching) > 0.005+m/5 {
		p.ask(p.again(fmt.Sprintf("--matching %g%%", 100*p.t.Matching)),
			"the sweep had %g %% of the events matching, the target has %g %%: what more matches cost the transaction", 100*m,
			100*p.t.Matching)
	}
}

// again is the command that measures the chosen point under another condition.
func (p *planner) again(flags string) string {
	s := p.point.Settings
	return fmt.Sprintf("lab bench ingest --sweep writers=%s,batch=%s,max-wait=%s %s", s["writers"], s["batch"],
		s["max-wait"], flags)
}
