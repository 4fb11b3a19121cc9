package retain

import (
	"errors"
	"fmt"
	"time"
)

// Config is what is kept and for how long. A period of 0 keeps without end.
type Config struct {
	// Events is the age at which a whole day of events goes, by when they happened; retain.events, default 0, without
	// end: throwing facts away is for an operator to decide. It has to be longer than the age of events that ingest
	// takes. An event that is sent again after its day has gone is new.
	Events time.Duration
	// Outbox is how long messages stay after they were sent or skipped; retain.outbox, default 168h (a week to look
	// into a complaint). The memory that keeps a promise from being made twice is apart, and stays.
	Outbox time.Duration
	// Dead is how long messages stay after they were given up; retain.dead, default 720h.
	Dead time.Duration
	// Attempts is how long delivery attempts are kept; the successful one is part of the message and goes with it;
	// retain.attempts, default 168h, as for the messages.
	Attempts time.Duration
	// Quarantine is how long events stay that PostgreSQL could not store; retain.quarantine, default 2160h.
	Quarantine time.Duration
	// Processed is how long a receiver in this database remembers a message; retain.processed, default 2160h. It must
	// not be shorter than the time after which a message can still be sent again, which is Dead.
	Processed time.Duration
}

const (
	// interval between two passes. A guess: what is past its time costs little.
	interval = 10 * time.Minute
	// partitionsAhead is how many days after today have a partition. A guess: a week to notice that none are made.
	partitionsAhead = 7
	// batchRows is the most that one transaction deletes. A guess: some 10 ms.
	batchRows = 1000
	// lockTimeout is how long to wait for a lock that others then have to wait behind. A guess: less than clients
	// notice as an outage.
	lockTimeout = time.Second
	// timeout bounds every transaction and statement, also the wait for those who still use a partition that is to go,
	// which holds up nobody. A guess.
	timeout = time.Minute
)

const day = 24 * time.Hour

// DefaultConfig is complete and valid.
func DefaultConfig() Config {
	return Config{
		Outbox:     7 * day,
		Dead:       30 * day,
		Attempts:   7 * day,
		Quarantine: 90 * day,
		Processed:  90 * day,
	}
}

func (c Config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Events < 0 || c.Events > 0 && c.Events < day,
		"retain.events is %s: set at least 24h, or 0 to keep events without end", c.Events)
	for _, p := range []struct {
		key  string
		keep time.Duration
	}{
		{"outbox", c.Outbox}, {"dead", c.Dead}, {"attempts", c.Attempts}, {"quarantine", c.Quarantine},
		{"processed", c.Processed},
	} {
		fault(p.keep < 0, "retain.%s is %s: set a period, or 0 to keep without end", p.key, p.keep)
	}
	fault(c.Processed > 0 && (c.Dead == 0 || c.Dead > c.Processed),
		"retain.processed is %s and retain.dead %s: a dead message that is sent again would take effect twice; "+
			"raise the first (0: without end) or lower the second", c.Processed, c.Dead)
	return errors.Join(faults...)
}
