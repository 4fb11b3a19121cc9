package deliver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
)

func TestClassify(t *testing.T) {
	d := &Destination{attempts: 6, retryStatus: map[int]bool{404: true}}
	check := func(attempt int, a answer, want pipeline.DeliveryStatus, reason string) {
		t.Helper()
		got, why := classify(d, attempt, a)
		if got != want || !strings.Contains(why, reason) || (why == "") != (want == pipeline.Sent) {
			t.Errorf("classify(attempt %d, %+v) = %s, %q; want %s, %q", attempt, a, got, why, want, reason)
		}
	}
	for _, status := range []int{200, 201, 202, 204, 299} {
		check(1, answer{status: status}, pipeline.Sent, "")
		check(6, answer{status: status}, pipeline.Sent, "")
	}
	for _, status := range []int{404, 408, 425, 429, 500, 502, 503, 504, 599} {
		check(1, answer{status: status, body: "no"}, pipeline.Failed, ": no")
		check(5, answer{status: status}, pipeline.Failed, "HTTP ")
		check(6, answer{status: status}, pipeline.Dead, "(attempt 6 of 6)")
	}
	for _, status := range []int{300, 301, 302, 303, 304, 307, 308} {
		check(1, answer{status: status, location: "https://new.example.com/h"}, pipeline.Dead,
			"to https://new.example.com/h;")
		d.retryStatus[status] = true
		check(1, answer{status: status}, pipeline.Failed, "HTTP ")
	}
	for _, status := range []int{400, 401, 403, 405, 409, 410, 413, 422, 451} {
		check(1, answer{status: status}, pipeline.Dead, "HTTP ")
	}
	for _, err := range []error{fasthttp.ErrTimeout, io.EOF, os.ErrDeadlineExceeded, errors.New("dial: refused")} {
		check(1, answer{err: err}, pipeline.Failed, describe(err))
		check(6, answer{err: err}, pipeline.Dead, describe(err))
	}
	refused := answer{err: guard{}.check("127.0.0.1:80")}
	check(1, refused, pipeline.Failed, "allow_private") // the name may have another address in a moment
	check(6, refused, pipeline.Dead, "allow_private")
	d.literal = true
	check(1, refused, pipeline.Dead, "allow_private")
}

func TestScheduleExponential(t *testing.T) {
	exact := schedule{base: 15 * time.Second, max: time.Hour}
	for attempt, want := range map[int]time.Duration{1: 15 * time.Second, 2: 30 * time.Second, 3: time.Minute,
		5: 4 * time.Minute,
		8: 32 * time.Minute, 9: time.Hour, 10: time.Hour, 1000: time.Hour} {
		if got := exact.wait(attempt); got != want {
			t.Errorf("wait(%d) = %s; want %s", attempt, got, want)
		}
	}
	var low, high bool
	for range 1000 {
		got := defaultSchedule.wait(4) // 2 minutes
		if got < minWait || got > 2*time.Minute {
			t.Fatalf("with full jitter wait(4) = %s; want 1s to 2m", got)
		}
		low, high = low || got < 30*time.Second, high || got > 90*time.Second
	}
	if !low || !high {
		t.Errorf("a thousand waits with full jitter: below a quarter: %t, above three quarters: %t; want both", low,
			high)
	}
}

func TestScheduleList(t *testing.T) {
	s := schedule{waits: []time.Duration{0, 5 * time.Second, time.Minute}}
	for attempt, want := range map[int]time.Duration{1: 0, 2: 5 * time.Second, 3: time.Minute, 4: time.Minute,
		99: time.Minute} {
		if got := s.wait(attempt); got != want {
			t.Errorf("wait(%d) = %s; want %s", attempt, got, want)
		}
	}
}

func TestCleanError(t *testing.T) {
	got := clean("HTTP 500: you sent s3cret \x00\xff"+strings.Repeat("ä", 1000), []string{"s3cret"})
	if len(got) > 1000 || len(got) < 990 || !utf8.ValidString(got) || strings.ContainsRune(got, 0) ||
		strings.Contains(got, "s3cret") {
		t.Errorf("clean gave %d bytes: %q", len(got), got)
	}
	if got := excerpt([]byte("line\r\nline\x00\xff"+strings.Repeat("x", 1<<20)), nil); len(got) > 230 ||
		!utf8.ValidString(got) || strings.ContainsAny(got, "\r\n\x00") {
		t.Errorf("excerpt gave %d bytes: %q", len(got), got)
	}
}

// What each answer shows about its destination: whether it did its part, got too much at once, or asked to be left
// alone.
func TestWhatAnAnswerShows(t *testing.T) {
	for _, c := range []struct {
		answer answer
		pause  time.Duration
		want   result
	}{
		{answer{status: 200}, 0, well},
		{answer{status: 302}, 0, well},
		{answer{status: 404}, 0, well},
		{answer{status: 410}, 0, well},
		{answer{status: 429}, time.Second, asked},
		{answer{status: 503}, time.Second, asked},
		{answer{status: 401, hold: time.Minute}, 0, asked}, // a broker that does not know us
		{answer{status: 429}, 0, crowded},
		{answer{status: 503}, 0, failed},
		{answer{status: 500}, time.Second, failed},
		{answer{status: 502}, time.Second, failed},
		{answer{status: 408}, time.Second, failed},
		{answer{status: 425}, time.Second, failed},
		{answer{err: io.EOF}, 0, failed},
		{answer{err: os.ErrDeadlineExceeded}, 0, failed},
	} {
		if got := c.answer.shows(c.pause); got != c.want {
			t.Errorf("HTTP %d, %v, with a pause of %s shows %d; want %d", c.answer.status, c.answer.err, c.pause, got, c.want)
		}
	}
}

// TestSecretsInAnswersAreHidden: a receiver repeats what it was sent, in part, decoded, or where the text is cut.
func TestSecretsInAnswersAreHidden(t *testing.T) {
	var answer string
	url := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		fmt.Fprint(w, answer)
	})
	const token, pair = "t0ken-0123456789-abcdef", "YXBwOmh1bnRlcjItaHVudGVy" // app:hunter2-hunter
	d, s := openSink(t, hook("crm", url, "headers_env: {Authorization: AUTH, X-Basic: BASIC}"), "AUTH", "Bearer "+token,
		"BASIC", "Basic "+pair)
	for _, answer = range []string{
		"bad token " + token, "bad header Bearer " + token, "no user app:hunter2-hunter", "wrong password hunter2-hunter",
		"basic " + pair, strings.Repeat("x", 190) + token, strings.Repeat("x", 180) + " " + token + token,
		"secret " + strings.TrimPrefix(testSecret, "whsec_"),
	} {
		_, reason := classify(d, 1, deliverOne(s, lease(`{}`)))
		reason = clean(reason, d.secrets)
		for _, part := range []string{"t0ken", "hunter2", "YXBwOm", "MfKQ9"} {
			if strings.Contains(reason, part) || !strings.HasPrefix(reason, "HTTP 400") {
				t.Errorf("answered %q, stored %q", answer, reason)
			}
		}
	}
}
