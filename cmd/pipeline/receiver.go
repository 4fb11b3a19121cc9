package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/wait"
)

// receiverOptions is how a receiver treats what it gets.
type receiverOptions struct {
	// The shares, from 0 to 1, of requests to answer with failStatus untouched, to leave without any answer, and to
	// take but answer with failStatus all the same, as when an answer is lost on the way.
	failRate, hangRate, loseAnswers float64
	failStatus                      int
	delay                           time.Duration
	// verifiers all have to agree; none means that signatures are not looked at.
	verifiers []inbox.Verifier
	// keepKeys and keepMessages bound memory; the oldest go first.
	keepKeys, keepMessages int
	seed                   uint64
}

func receiverCommand(ctx context.Context, args []string, env cli.Env) error {
	var o receiverOptions
	fs := cli.NewFlags(env, "receiver", `A webhook sink for trials and tests. Every POST is a message: its signatures are verified, its idempotency key is
remembered, and it fails as told. GET /stats counts, GET /messages shows the last bodies, GET /healthz answers ok.
Secrets come from the environment: RECEIVER_WEBHOOK_SECRET (whsec_..., Standard Webhooks) and RECEIVER_SECRET
(X-Signature). A form without a secret is not checked.`,
		"RECEIVER_SECRET=s3cret pipeline receiver --listen 127.0.0.1:9000 --fail-rate 0.1 --delay 20ms")
	listen := fs.String("listen", "127.0.0.1:9000", "`address` to listen on")
	fs.Float64Var(&o.failRate, "fail-rate", 0, "`share` of requests to refuse with --fail-status, 0 to 1")
	fs.IntVar(&o.failStatus, "fail-status", 503, "HTTP `status` of a failure")
	fs.Float64Var(&o.hangRate, "hang", 0, "`share` of requests to leave without any answer, 0 to 1")
	fs.Float64Var(&o.loseAnswers, "lose-answers", 0, "`share` of requests to take and yet answer with --fail-status, 0 to 1")
	fs.DurationVar(&o.delay, "delay", 0, "how `long` to wait before each answer")
	fs.IntVar(&o.keepKeys, "keep-keys", 1_000_000, "idempotency `keys` to remember; about 100 bytes each")
	fs.IntVar(&o.keepMessages, "keep-messages", 100, "`messages` to show at /messages; at most 16 KiB each")
	fs.Uint64Var(&o.seed, "seed", 0, "`seed` of the random choices; 0 takes a new one each time")
	_, err := cli.Parse(fs, args, 0)
	if err != nil {
		return err
	}
	if o.verifiers, err = receiverVerifiers(env); err != nil {
		return cli.Usage(err)
	}
	r, err := newReceiver(o)
	if err != nil {
		return cli.Usage(err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "receiver: listening on http://%s, verifying %d signature forms\n", l.Addr(), len(o.verifiers))
	return serveHTTP(ctx, l, r.handler(), 5*time.Second)
}

func receiverVerifiers(env cli.Env) (all []inbox.Verifier, err error) {
	var errs []error
	if s := env.Variable("RECEIVER_WEBHOOK_SECRET"); s != "" {
		v, err := inbox.NewStandardWebhooks(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("RECEIVER_WEBHOOK_SECRET: %w", err))
		}
		all = append(all, v)
	}
	if s := env.Variable("RECEIVER_SECRET"); s != "" {
		v, err := inbox.NewXSignature(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("RECEIVER_SECRET: %w", err))
		}
		all = append(all, v)
	}
	return all, errors.Join(errs...)
}

// receiverStats is the answer of /stats. Requests is the sum of the others up to Hung and those under way.
type receiverStats struct {
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

type receivedMessage struct {
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

type receiver struct {
	options receiverOptions

	mu       sync.Mutex
	random   *rand.Rand
	stats    receiverStats
	keys     map[string]bool
	keyRing  []string
	keyNext  int
	messages []receivedMessage
}

func newReceiver(o receiverOptions) (*receiver, error) {
	var errs []error
	for name, share := range map[string]float64{"fail-rate": o.failRate, "hang": o.hangRate, "lose-answers": o.loseAnswers} {
		if !(share >= 0 && share <= 1) {
			errs = append(errs, fmt.Errorf("--%s: %g is no share from 0 to 1", name, share))
		}
	}
	if o.failStatus < 100 || o.failStatus > 599 {
		errs = append(errs, fmt.Errorf("--fail-status: %d is no HTTP status", o.failStatus))
	}
	if o.keepKeys < 1 || o.keepMessages < 0 {
		errs = append(errs, errors.New("--keep-keys has to be at least 1, --keep-messages at least 0"))
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return &receiver{
		options: o,
		random:  rand.New(rand.NewPCG(o.seed, 0)),
		keys:    map[string]bool{},
		stats:   receiverStats{ByType: map[string]int64{}},
	}, errors.Join(errs...)
}

func (r *receiver) handler() http.Handler {
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
func (r *receiver) receive(w http.ResponseWriter, req *http.Request) {
	r.count(func(s *receiverStats) { s.Requests++ })
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReceivedBody))
	if err != nil {
		r.count(func(s *receiverStats) { s.Refused++ })
		http.Error(w, "the body broke off or is over 4 MiB", http.StatusRequestEntityTooLarge)
		return
	}
	for _, v := range r.options.verifiers {
		if err := v.Verify(req.Header, body); err != nil {
			r.count(func(s *receiverStats) { s.BadSignatures++ })
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
	}
	if r.options.delay > 0 && !wait.For(req.Context(), r.options.delay) {
		r.count(func(s *receiverStats) { s.Hung++ })
		return
	}
	key := req.Header.Get("Idempotency-Key")
	if key == "" {
		key = req.Header.Get("webhook-id")
	}
	switch outcome := r.decide(key, body); outcome {
	case "hung":
		<-req.Context().Done()
	case "failed", "answer lost":
		http.Error(w, "failing as told", r.options.failStatus)
	default:
		writeJSON(w, map[string]bool{"duplicate": outcome == "duplicate"})
	}
}

func (r *receiver) count(f func(*receiverStats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.stats)
}

// decide says what becomes of a genuine message, and counts it.
func (r *receiver) decide(key string, body []byte) (outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.show(key, outcome, body) }()
	switch {
	case r.random.Float64() < r.options.hangRate:
		r.stats.Hung++
		return "hung"
	case r.random.Float64() < r.options.failRate:
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
	if r.random.Float64() < r.options.loseAnswers {
		r.stats.AnswersLost++
		return "answer lost"
	}
	return "accepted"
}

func (r *receiver) countType(body []byte) {
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

func (r *receiver) remember(key string) {
	r.keys[key] = true
	if len(r.keyRing) < r.options.keepKeys {
		r.keyRing = append(r.keyRing, key)
		return
	}
	delete(r.keys, r.keyRing[r.keyNext])
	r.stats.ForgottenKeys++
	r.keyRing[r.keyNext] = key
	r.keyNext = (r.keyNext + 1) % len(r.keyRing)
}

func (r *receiver) show(key, outcome string, body []byte) {
	if r.options.keepMessages == 0 {
		return
	}
	if len(body) > maxShownBody || !json.Valid(body) {
		body = []byte(strconv.Quote(fmt.Sprintf("(%d bytes, too long or no JSON)", len(body))))
	}
	if len(r.messages) == r.options.keepMessages {
		r.messages = r.messages[1:]
	}
	r.messages = append(r.messages, receivedMessage{time.Now().UTC(), key, outcome, bytes.Clone(body)})
}

// serveHTTP serves until ctx ends, then lets requests finish for at most drain. Requests that hang are cut off.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler, drain time.Duration) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(requests, drain)
		defer cancel()
		err := server.Shutdown(limit)
		if errors.Is(err, context.DeadlineExceeded) {
			cut()
			err = server.Close()
		}
		stopped <- err
	})
	err := server.Serve(l)
	if stop() {
		return err // it failed by itself
	}
	return <-stopped
}
