package retain

import (
	"errors"
	"fmt"
	"time"
)

// Config says what is kept and for how long. A period of 0 keeps for ever.
type Config struct {
	// Interval between two passes; retain.interval, default 10 min (a guess: what is past its time costs little).
	Interval time.Duration
	// PartitionsAhead is how many days after today have a partition; retain.partitions-ahead, default 7 (a guess: a
	// week to notice that none are made).
	PartitionsAhead int
	// Events is the age at which a whole day of events goes, by when they happened; retain.events, default 0, for ever:
	// throwing facts away is for an operator to decide. It has to be longer than the age of events that ingest takes.
	// An event that is sent again after its day has gone is new.
	Events time.Duration
	// Outbox is how long messages stay after they were sent or skipped; retain.outbox, default 168h (a week to look
	// into a complaint). The memory that keeps a promise from being made twice is not theirs, and stays.
	Outbox time.Duration
	// Dead is how long messages stay after they were given up; retain.dead, default 720h.
	Dead time.Duration
	// Attempts is how long the record of an attempt to deliver stays, but for the one by which a message was sent, which
	// stands in the message's row; retain.attempts, default 168h, as for the messages.
	Attempts time.Duration
	// Quarantine is how long events stay that PostgreSQL would not store; retain.quarantine, default 2160h.
	Quarantine time.Duration
	// Processed is how long a receiver in this database remembers a message; retain.processed, default 2160h. It must
	// not be shorter than the time after which a message can still be sent again, which is Dead.
	Processed time.Duration
	// Subjects is how long a rule remembers a subject whose cooldown and cap are over and of whom nothing is held back;
	// retain.subjects, default 168h. It changes no decision of the rule as it is; a rule that is edited to a longer
	// cooldown or cap finds what happened within that time.
	Subjects time.Duration
	// RuleHours is how long the counts of a rule's hours stay; retain.rule-hours, default 9600h (400 days: a year and a
	// month to compare).
	RuleHours time.Duration
	// RuleState is how long timers, counts and states stay of rules that no node has in force any more; retain.rule-state,
	// default 9600h. It has to be longer than lookbacks and baselines, or a rule that comes back would begin anew.
	RuleState time.Duration
	// BatchRows is the most that one transaction deletes; retain.batch-rows, default 1000 (a guess: some 10 ms).
	BatchRows int
	// LockTimeout is how long one may wait for a lock that others would then have to wait behind; retain.lock-timeout,
	// default 1 s (a guess: less than clients notice as an outage).
	LockTimeout time.Duration
	// Timeout bounds every transaction and statement, also the wait for those who still use a partition that is to go,
	// which holds up nobody; retain.timeout, default 1 min (a guess).
	Timeout time.Duration
}

const day = 24 * time.Hour

// DefaultConfig is complete and valid.
func DefaultConfig() Config {
	return Config{
		Interval:        10 * time.Minute,
		PartitionsAhead: 7,
		Outbox:          7 * day,
		Dead:            30 * day,
		Attempts:        7 * day,
		Quarantine:      90 * day,
		Processed:       90 * day,
		Subjects:        7 * day,
		RuleHours:       400 * day,
		RuleState:       400 * day,
		BatchRows:       1000,
		LockTimeout:     time.Second,
		Timeout:         time.Minute,
	}
}

func (c Config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Interval <= 0, "retain.interval is %s: set it above 0", c.Interval)
	fault(c.PartitionsAhead < 1 || c.PartitionsAhead > 366, "retain.partitions-ahead is %d: give 1 to 366 days", c.PartitionsAhead)
	fault(c.Events < 0 || c.Events > 0 && c.Events < day, "retain.events is %s: give at least 24h, or 0 to keep events for ever", c.Events)
	for _, p := range []struct {
		key  string
		keep time.Duration
	}{
		{"outbox", c.Outbox}, {"dead", c.Dead}, {"attempts", c.Attempts}, {"quarantine", c.Quarantine}, {"processed", c.Processed},
		{"subjects", c.Subjects}, {"rule-hours", c.RuleHours}, {"rule-state", c.RuleState},
	} {
		fault(p.keep < 0, "retain.%s is %s: give a period, or 0 to keep for ever", p.key, p.keep)
	}
	fault(c.Processed > 0 && (c.Dead == 0 || c.Dead > c.Processed),
		"retain.processed is %s and retain.dead %s: a dead message that is sent again would take effect twice; raise the first (0: for ever) or lower the second",
		c.Processed, c.Dead)
	fault(c.BatchRows < 1, "retain.batch-rows is %d: give at least 1", c.BatchRows)
	fault(c.LockTimeout < time.Millisecond, "retain.lock-timeout is %s: give at least 1ms", c.LockTimeout)
	fault(c.Timeout <= c.LockTimeout, "retain.timeout is %s: give more than retain.lock-timeout (%s)", c.Timeout, c.LockTimeout)
	return errors.Join(faults...)
}
