package deliver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sluice.example/sluice/pipeline"
)

// answer is what came of one attempt: an error, or a status.
type answer struct {
	err        error
	status     int
	body       string // its start, for people
	location   string // where a redirect points
	retryAfter string
	// hold, where set, is how long the destination takes nothing, through no fault of the message: no attempt
	// is counted.
	hold time.Duration
}

// classify is the one place that decides what an answer means. 2xx: sent. 408, 425, 429, 5xx and every failure of the
// network: tried again, until the attempts are used up. All other 4xx: dead, and 3xx too, since redirects are not
// followed; unless the destination's retry_status lists them. A refused address: dead if the configuration holds the
// address itself.
func classify(d *Destination, attempt int, a answer) (status pipeline.DeliveryStatus, reason string) {
	final := false
	switch {
	case a.err != nil:
		reason = describe(a.err)
		final = errors.Is(a.err, errRefused) && d.literal // a name may have another address in a moment
	case a.status >= 200 && a.status <= 299:
		return pipeline.Sent, ""
	default:
		reason = a.reason()
		final = a.status >= 300 && a.status <= 499 && a.status != 408 && a.status != 425 && a.status != 429 &&
			!d.retryStatus[a.status]
	}
	switch {
	case final:
		return pipeline.Dead, reason
	case attempt >= d.attempts:
		return pipeline.Dead, fmt.Sprintf("%s (attempt %d of %d)", reason, attempt, d.attempts)
	}
	return pipeline.Failed, reason
}

func describe(err error) string {
	switch {
	case isTimeout(err) || errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, io.EOF):
		return "the receiver closed the connection without an answer"
	}
	return err.Error()
}

// clean makes an error fit for last_error: at most 1,000 bytes of UTF-8, no NUL, none of the secrets, which a receiver
// may have repeated in its answer.
func clean(reason string, secrets []string) string {
	reason = hide(reason, secrets)
	reason = strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
	const most = 1000
	if len(reason) <= most {
		return reason
	}
	cut := most
	for !utf8.RuneStart(reason[cut]) {
		cut--
	}
	return reason[:cut]
}

// shows is what an answer shows about its destination. pause is how long that asked to be left alone.
// 429 and 503 with a Retry-After, and what is held, are not about the message.
func (a answer) shows(pause time.Duration) result {
	switch {
	case a.hold > 0 || pause > 0 && (a.status == 429 || a.status == 503):
		return asked
	case a.well():
		return well
	case a.status == 429:
		return crowded
	}
	return failed
}

// well reports whether a destination did its part in an attempt: it answered, and not with a failure of its own.
func (a answer) well() bool {
	return a.err == nil && a.hold == 0 && a.status < 500 && a.status != 408 && a.status != 425 && a.status != 429
}

// reason is a status, with what the answer adds to it, for people.
func (a answer) reason() string {
	reason := fmt.Sprintf("HTTP %d", a.status)
	switch {
	case a.location != "":
		reason += ", to " + a.location + "; redirects are not followed: configure that address, if it is right"
	case a.body != "":
		reason += ": " + a.body
	}
	return reason
}

// summary is the answer in a word or two, for a log. It quotes nothing of it.
func (a answer) summary() string {
	if a.err != nil {
		return describe(a.err)
	}
	return fmt.Sprintf("HTTP %d", a.status)
}

// pause is how long the destination asked to be left alone, by Retry-After: seconds or a date (RFC 9110). 0: it did
// not, or not in a way that can be read.
func (a answer) pause(now time.Time) time.Duration {
	s := strings.TrimSpace(a.retryAfter)
	if s == "" || a.well() {
		return 0
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second
	}
	t, err := http.ParseTime(s)
	if err != nil {
		return 0
	}
	return max(t.Sub(now), 0)
}

// schedule is how long to wait before the next attempt.
type schedule struct {
	// waits, where set, are the waits after the first, second, ... attempt; the last one is repeated.
	waits []time.Duration
	// Otherwise the wait after attempt n is base*2^(n-1), at most max.
	base, max time.Duration
	// jitter is the part of the wait that is drawn by lot: 1 takes anything from 0 to the whole wait ("full jitter"),
	// so that what failed together does not come back together.
	jitter float64
}

var defaultSchedule = schedule{base: 15 * time.Second, max: time.Hour, jitter: 1}

// maxWait bounds every wait of a schedule.
const maxWait = 30 * 24 * time.Hour

// minWait keeps jitter from hitting a failing receiver at once.
const minWait = time.Second

func (s schedule) wait(attempt int) time.Duration {
	if len(s.waits) > 0 {
		return s.waits[min(attempt, len(s.waits))-1]
	}
	d := s.base
	for i := 1; i < attempt && d < s.max; i++ {
		d *= 2
	}
	d = min(d, s.max)
	return max(d-time.Duration(s.jitter*rand.Float64()*float64(d)), min(minWait, d))
}
