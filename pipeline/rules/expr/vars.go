package expr

import (
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"sluice.example/sluice/pipeline"
)

// Vars are the values of one evaluation. They can be set again and again, and keep their memory; they are for one
// goroutine. Vars is a CEL activation.
type Vars struct {
	view   view
	digest *object
	rate   *object
	// key and since are those of an absence rule's timer.
	key   string
	since time.Time
	// large: what evaluating costs is counted. spent is for this event, total for all of them.
	large        bool
	spent, total uint64
}

// SetEvent makes the values those of an event. It is borrowed until the next Set.
func (v *Vars) SetEvent(ev *pipeline.Event) {
	v.view.set(ev)
	v.large = ev.Size() > largeEvent
	v.spent = 0
}

// SetTimer makes the values those of a timer that has run out: the event that started it, its key, and the moment from
// which the wait counted.
func (v *Vars) SetTimer(trigger *pipeline.Event, key string, since time.Time) {
	v.SetEvent(trigger)
	v.key, v.since = key, since
}

// SetDigest makes the values those of a digest, which is a JSON object with the members of Digest expressions.
func (v *Vars) SetDigest(digest []byte) { *v = Vars{digest: &object{raw: string(digest)}} }

// SetRate makes the values those of a judged window, which is a JSON object with the members of Rate expressions.
func (v *Vars) SetRate(rate []byte) { *v = Vars{rate: &object{raw: string(rate)}} }

// ResolveName is part of CEL's interface.
func (v *Vars) ResolveName(name string) (any, bool) {
	switch name {
	case "event", "trigger":
		return &v.view, v.view.event != nil
	case "digest":
		return v.digest, v.digest != nil
	case "rate":
		return v.rate, v.rate != nil
	case "key":
		return types.String(v.key), true
	case "since":
		return types.Timestamp{Time: v.since}, true
	case "late_by":
		if v.view.event == nil {
			return nil, false
		}
		return types.Int(v.view.event.LateBy() / time.Second), true
	}
	return nil, false
}

// Parent is part of CEL's interface.
func (v *Vars) Parent() cel.Activation { return nil }
