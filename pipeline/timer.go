package pipeline

import "time"

// Absence is what the stage that watches the clock has to know of a rule about something that does not happen.
type Absence struct {
	// Timer names the rule's timers. It changes with the rule's trigger, cancel and key.
	Timer string
	// Rule is the rule's name, for people.
	Rule string
	// Names are the events that the timers depend on; nil for all.
	Names []string
	// Within is how long to wait. Lookback is how long ago a trigger may be and still fire.
	Within, Lookback time.Duration
	// First says that the wait counts from the first trigger after the last cancel, not from the last trigger.
	First bool
}

// Due is a timer that has run out.
type Due struct {
	Tenant int32
	Key    string
	// Anchor is from when the wait counted. Latest is the latest trigger, which is the anchor in most rules.
	Anchor, Latest time.Time
	// Trigger is the event that the decision is about. Its Name is empty if it is no longer stored.
	Trigger Event
}

// Held is what cooldown and cap held back from one subject of a rule.
type Held struct {
	Tenant int32
	// State names the rule's state, as it was recorded.
	State   string
	Subject string
	Count   int64
	Since   time.Time
}

// Rate is what the stage that watches the clock has to know of a rule about how much happens.
type Rate struct {
	// Metric names the rule's counts and states. It changes with what is counted.
	Metric string
	// Rule is the rule's name, for people.
	Rule string
	// Names are the events that are counted; nil for all.
	Names []string
	// Tenants are those that the rule is for; nil for all.
	Tenants []int32
	// Window is what is judged, Every how often, and Settle how long after its end.
	Window, Every, Settle time.Duration
	// Periods are the windows before it that it is compared with: ends of windows, for the end of one.
	Periods func(end time.Time) []time.Time
	// Inhibitors are the metrics of rules that, while they fire, keep this one from firing.
	Inhibitors []string
}

// Sample is what happened in one window.
type Sample struct {
	// N and X are denominator and numerator.
	N, X float64
	// Usable says that it can be compared with: something was counted, and the rule did not fire.
	Usable bool
}

// Minute is a minute of a tenant's time.
type Minute struct {
	Tenant int32
	At     time.Time
}

// Counts are how many events a rate rule counted: denominator and numerator, and the same of those that arrived late.
type Counts [4]int64
