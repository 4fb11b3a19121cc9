package ingest

import (
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"sluice.example/sluice/internal/timetext"
	"sluice.example/sluice/pipeline"
)

// identify sets the event's id and time, which together are its key: a retry has to come to the same. Where the time
// depends on when the request came, it is unknown, and the event is looked up by its id around that time.
func (d *decoder) identify(dr *draft) {
	var known bool // whether the id holds a time
	var inside time.Time
	e := &dr.e
	if len(dr.id) == 0 {
		e.ID = pipeline.NewUUIDv7(d.now)
	} else {
		s := unsafe.String(&dr.id[0], len(dr.id))
		var isUUID bool
		if e.ID, isUUID = pipeline.ParseUUID(s); isUUID {
			inside, known = e.ID.Time()
		} else {
			e.ID, e.ClientID = pipeline.HashUUID(s), s
		}
	}
	if len(dr.when) > 0 {
		d.setTime(dr)
		return
	}
	if t, ok := d.ago(dr.offset); ok {
		e.OccurredAt, e.TimeUnknown = t, len(dr.id) > 0
		return
	}
	switch {
	case len(dr.id) == 0:
		e.OccurredAt = d.now
	case known && inside.After(d.newest) && dr.inside == "":
		// Taken as unknown now, its time would be known to a retry after the clock has caught up: two keys.
		dr.reject(dr.idName, fmt.Sprintf("holds the time %s (UUID version 7), which is more than %s ahead "+
			"(ingest.max-ahead); send %s", inside.Format(time.RFC3339), d.cfg.MaxAhead, dr.whenName), causeTime)
	case known && inside.After(d.newest):
		// Of a device whose clock is wrong, and whose SDK would lose the event if it were rejected.
		e.OccurredAt, e.TimeUnknown = d.now, true
		if t, ok := d.shifted(inside, dr.sent); ok {
			e.OccurredAt = t
		}
	case known && !inside.Before(d.oldest):
		e.OccurredAt = inside
	default:
		e.OccurredAt, e.TimeUnknown = d.now, true
	}
}

// setTime sets the time that the client sent. It is never corrected while it can be stored, since a correction would be
// another one at a retry.
func (d *decoder) setTime(dr *draft) {
	t, ok := timetext.RFC3339(dr.when)
	if !ok && dr.loose {
		if t, ok = timetext.Loose(dr.when); ok {
			d.putBy(dr.whenHead, dr.whenRaw)
		}
	}
	if !ok {
		dr.reject(dr.whenName, notATime+strconv.Quote(cut(dr.when)), causeTime)
		return
	}
	dr.e.OccurredAt = t
	if !t.Before(d.oldest) && !t.After(d.newest) {
		return
	}
	if right, ok := d.shifted(t, dr.sent); ok {
		dr.e.OccurredAt, dr.e.TimeUnknown = right, len(dr.id) > 0
		d.putBy(dr.whenHead, dr.whenRaw)
		return
	}
	d.checkTime(dr, t)
}

// notATime goes on with what was sent instead.
const notATime = "must be a time as in RFC 3339 with its offset, like 2026-01-31T23:59:59.123Z or " +
	"2026-01-31T23:59:59+02:00, not "

// shifted returns a time by our clock, when the client says what its own showed as it sent the request.
func (d *decoder) shifted(t time.Time, sent []byte) (time.Time, bool) {
	at, ok := timetext.Loose(sent)
	if !ok {
		return t, false
	}
	t = d.now.Add(t.Sub(at))
	return t, !t.Before(d.oldest) && !t.After(d.newest)
}

// ago returns the time that lies a number of milliseconds back. The client's clock has no part in it.
func (d *decoder) ago(millis []byte) (time.Time, bool) {
	if len(millis) == 0 {
		return time.Time{}, false
	}
	f, err := strconv.ParseFloat(unsafe.String(&millis[0], len(millis)), 64)
	if err != nil || !(f >= 0 && f <= float64(d.cfg.MaxAge.Milliseconds())) {
		return time.Time{}, false
	}
	return d.now.Add(-time.Duration(f * float64(time.Millisecond))).Truncate(time.Microsecond), true
}

// checkTime rejects a time that the client gave which is too far away.
func (d *decoder) checkTime(dr *draft, t time.Time) {
	switch {
	case t.Before(d.oldest):
		dr.reject(dr.whenName, fmt.Sprintf("is %s, more than %s ago (ingest.max-age)",
			t.Format(time.RFC3339), d.cfg.MaxAge), causeTime)
	case t.After(d.newest):
		dr.reject(dr.whenName, fmt.Sprintf("is %s, more than %s ahead (ingest.max-ahead)",
			t.Format(time.RFC3339), d.cfg.MaxAhead), causeTime)
	}
}
