package bench

import (
	"context"
	"errors"
	"time"
)

// Suite runs everything that a release needs. The report is complete also where books do not balance; see Report.Err.
func Suite(ctx context.Context, o Options) (_ *Report, err error) {
	start := time.Now()
	rounds, command := 7+5+5+5+2*5, "make bench"
	if o.Quick {
		rounds, command = 3+3+3+3+2*2, "make bench-quick"
	}
	l, err := openLab(ctx, o, rounds+5)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	r := &Report{Command: command}
	if r.Machine, err = describe(ctx, l.db); err != nil {
		return nil, err
	}
	if r.Results, err = l.ingest(ctx); err != nil {
		return nil, err
	}
	var rate float64
	for _, res := range r.Results {
		if res.Name == "ingest-rules" {
			rate = res.Rate.Median
		}
	}
	for _, run := range []func(context.Context) ([]Result, error){
		l.single, l.claim, l.delivery, l.ordered, func(ctx context.Context) ([]Result, error) { return l.trip(ctx, rate) },
	} {
		results, err := run(ctx)
		if err != nil {
			return nil, err
		}
		r.Results = append(r.Results, results...)
	}
	r.Took = time.Since(start).Round(time.Second)
	return r, nil
}
