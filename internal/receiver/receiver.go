// Package receiver is a webhook sink for trials and tests: it verifies and deduplicates messages, and fails as told. It
// knows what it got until it ends; its memory is bounded. Safe for concurrent use.
package receiver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.example/sluice/inbox"
)

// Options say how a receiver treats what it gets.
type Options struct {
	// FailRate, HangRate and LoseAnswers are shares from 0 to 1: of the requests to answer with FailStatus untouched, of
	// those to leave without any answer, and of those to take and yet answer with FailStatus, as when an answer is lost on
	// the way.
	FailRate, HangRate, LoseAnswers float64
	FailStatus                      int
	// Delay comes before each answer.
	Delay time.Duration
	// Verifiers all have to agree; without any, signatures are not looked at.
	Verifiers []inbox.Verifier
	// KeepKeys and KeepMessages bound memory: idempotency keys to remember, about 100 bytes each, and messages to show, at
	// most 16 KiB each. The oldest go first.
	KeepKeys, KeepMessages int
	// Seed is that of the random choices; 0 takes a new one each time.
	Seed uint64
}

// DefaultOptions take everything.
func DefaultOptions() Options {
	return Options{FailStatus: http.StatusServiceUnavailable, KeepKeys: 1_000_000, KeepMessages: 100}
}

// Stats is the answer of /stats. Requests is the sum of the others up to Hung and those under way.
type Stats struct {
	Requests      int64            `json:"requests"`
	Accepted      int64            `json:"accepted"`
	Duplicates    int64            `json:"duplicates"`
	BadSignatures int64            `json:"bad_signatures"`
	Refused       int64            `json:"refused"`
	Failed        int64            `json:"failed"`
	Hung          int64            `json:"hung"`
	AnswersLost   int64            `json:"answers_lost"`
	WithoutKey    int64            `json:"without_key"`
	ForgottenKeys int64            `json:"forgotten_keys"`
	ByType        map[string]int64 `json:"by_type"`
}

// Message is one of those that /messages shows.
type Message struct {
	ReceivedAt time.Time       `json:"received_at"`
	Key        string          `json:"idempotency_key"`
	Outcome    string          `json:"outcome"`
	Body       json.RawMessage `json:"body"`
}

const (
	maxReceivedBody = 4 << 20
	maxShownBody    = 16 << 10
	// maxTypes bounds ByType, whose keys come from outside.
	maxTypes = 1000
)

// Receiver is the sink; see Handler.
type Receiver struct {
	options Options

	mu       sync.Mutex
	random   *rand.Rand
	stats    Stats
	keys     map[string]bool
	keyRing  []string
	keyNext  int
	messages []Message
}

// New reports every fault of its options.
func New(o Options) (*Receiver, error) {
	var errs []error
	share := func(name string, v float64) {
		if !(v >= 0 && v <= 1) {
			errs = append(errs, fmt.Errorf("--%s: %g is not a share from 0 to 1", name, v))
		}
	}
	share("fail-rate", o.FailRate)
	share("hang", o.HangRate)
	share("lose-answers", o.LoseAnswers)
	if o.FailStatus < 100 || o.FailStatus > 599 {
		errs = append(errs, fmt.Errorf("--fail-status: %d is not an HTTP status", o.FailStatus))
	}
	if o.KeepKeys < 1 || o.KeepMessages < 0 {
		errs = append(errs, errors.New("--keep-keys has to be at least 1, --keep-messages at least 0"))
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return &Receiver{
		options: o,
		random:  rand.New(rand.NewPCG(o.Seed, 0)),
		keys:    map[string]bool{},
		stats:   Stats{ByType: map[string]int64{}},
	}, errors.Join(errs...)
}

// Handler serves POST / for messages, and GET /stats, /messages and /healthz.
func (r *Receiver) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		writeJSON(w, r.stats)
	})
	mux.HandleFunc("GET /messages", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		writeJSON(w, map[string]any{"messages": r.messages})
	})
	mux.HandleFunc("POST /", r.receive)
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client has gone away
}

// receive takes one message. A key is remembered when its message is taken, and only then, so what was refused may
// come again.
func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) {
	r.count(func(s *Stats) { s.Requests++ })
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReceivedBody))
	if err != nil {
		r.count(func(s *Stats) { s.Refused++ })
		http.Error(w, "the body broke off or is over 4 MiB", http.StatusRequestEntityTooLarge)
		return
	}
	for _, v := range r.options.Verifiers {
		if err := v.Verify(req.Header, body); err != nil {
			r.count(func(s *Stats) { s.BadSignatures++ })
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
	}
	if r.options.Delay > 0 {
		select {
		case <-time.After(r.options.Delay):
		case <-req.Context().Done():
			r.count(func(s *Stats) { s.Hung++ })
			return
		}
	}
	key := req.Header.Get("Idempotency-Key")
	if key == "" {
		key = req.Header.Get("webhook-id")
	}
	switch outcome := r.decide(key, body); outcome {
	case "hung":
		<-req.Context().Done()
	case "failed", "answer lost":
		http.Error(w, "failing as told", r.options.FailStatus)
	default:
		writeJSON(w, map[string]bool{"duplicate": outcome == "duplicate"})
	}
}

func (r *Receiver) count(f func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.stats)
}

// decide says what becomes of a genuine message, and counts it.
func (r *Receiver) decide(key string, body []byte) (outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.show(key, outcome, body) }()
	switch {
	case r.random.Float64() < r.options.HangRate:
		r.stats.Hung++
		return "hung"
	case r.random.Float64() < r.options.FailRate:
		r.stats.Failed++
		return "failed"
	case key != "" && r.keys[key]:
		r.stats.Duplicates++
		return "duplicate"
	}
	r.stats.Accepted++
	r.countType(body)
	if key == "" {
		r.stats.WithoutKey++
	} else {
		r.remember(key)
	}
	if r.random.Float64() < r.options.LoseAnswers {
		r.stats.AnswersLost++
		return "answer lost"
	}
	return "accepted"
}

func (r *Receiver) countType(body []byte) {
	var m struct{ Rule, Type string }
	_ = json.Unmarshal(body, &m) // any body is taken; one without a type counts as such
	name := m.Rule
	if name == "" {
		name = m.Type
	}
	if _, known := r.stats.ByType[name]; !known && len(r.stats.ByType) >= maxTypes {
		name = "other"
	}
	r.stats.ByType[name]++
}

func (r *Receiver) remember(key string) {
	r.keys[key] = true
	if len(r.keyRing) < r.options.KeepKeys {
		r.keyRing = append(r.keyRing, key)
		return
	}
	delete(r.keys, r.keyRing[r.keyNext])
	r.stats.ForgottenKeys++
	r.keyRing[r.keyNext] = key
	r.keyNext = (r.keyNext + 1) % len(r.keyRing)
}

func (r *Receiver) show(key, outcome string, body []byte) {
	if r.options.KeepMessages == 0 {
		return
	}
	if len(body) > maxShownBody || !json.Valid(body) {
		body = []byte(strconv.Quote(fmt.Sprintf("(%d bytes, too long or not JSON)", len(body))))
	}
	if len(r.messages) == r.options.KeepMessages {
		r.messages = r.messages[1:]
	}
	r.messages = append(r.messages, Message{time.Now().UTC(), key, outcome, bytes.Clone(body)})
}
