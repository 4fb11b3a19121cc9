package evaluate

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"sluice.example/sluice/pipeline"
)

// Plan is what the rules decided about one batch, before it is known which of its events are new. Its methods are for
// one goroutine.
type Plan struct {
	recorder
	set    *Set
	events []pipeline.Event
	// looked are the events that some rule listens to.
	looked     []int
	candidates []candidate
	marks      []mark
	counts     []count
	failures   []failure

	record record
	vars   vars
}

// candidate is a decision before dedupe, cooldown and cap.
type candidate struct {
	rule   *rule
	tenant int32
	// batch is the event's place in its batch; not used where no batch led to the decision.
	batch   int
	event   pipeline.UUID
	at      time.Time
	subject string
	key     string
	keyHash pipeline.UUID
	// once: nothing but this event, or this state of a subject, can lead to the decision, so it needs no ledger.
	once    bool
	payload []byte
	// unlimited: cooldown and cap do not apply, since they made it.
	unlimited bool
	// delay is how long after the decision the message is due.
	delay time.Duration
	// recheck is what has to be looked at again before the message is sent; JSON or nil.
	recheck []byte
	// The timer's key, anchor and latest trigger, where one led to the decision.
	timerKey       string
	anchor, latest time.Time
}

// failure is a rule that could not decide about an event.
type failure struct {
	rule  *rule
	batch int
	event pipeline.UUID
	kind  string
	err   error
}

// The kinds of failures, as they stand in the metric.
const (
	failedExpression = "expression" // an expression has no value, for example since a property is missing
	failedKey        = "no-key"     // subject or dedupe_key is null or empty
	failedSize       = "too-large"  // a key or the payload is too long
	failedPanic      = "panic"      // our own bug
	failedRefused    = "refused"    // PostgreSQL would not store the decision
)

// maxKeyBytes bounds subjects and dedupe keys.
const maxKeyBytes = 1 << 10

// look evaluates one event by those who listen to it.
func (p *Plan) look(i int, lists [2][]listener) {
	p.looked = append(p.looked, i)
	p.record.set(&p.events[i])
	p.vars.event = &p.record
	for _, listeners := range lists {
		for _, l := range listeners {
			p.one(i, l)
		}
	}
}

// one evaluates one rule on one event, whatever happens.
func (p *Plan) one(i int, l listener) {
	defer func() {
		if r := recover(); r != nil {
			p.fail(l.rule, i, failedPanic, fmt.Errorf("%v", r))
		}
	}()
	known := yes
	if l.match != nil {
		known = l.match.short.holds(&p.record)
	}
	switch known {
	case no:
		return
	case ask:
		out, err := l.match.eval(&p.vars)
		if err != nil {
			p.fail(l.rule, i, failedExpression, err)
			return
		}
		if out != types.True {
			if out != types.False {
				p.fail(l.rule, i, failedExpression, fmt.Errorf("match gives a %s, not a bool", out.Type().TypeName()))
			}
			return
		}
	}
	switch l.role {
	case decides:
		p.candidate(i, l.rule)
	case numerator, denominator:
		p.counts = append(p.counts, count{l.rule, i, &p.events[i], l.role})
	default:
		p.mark(i, l)
	}
}

func (p *Plan) candidate(i int, r *rule) {
	ev := &p.events[i]
	c := candidate{rule: r, tenant: ev.Tenant, batch: i, event: ev.ID, at: ev.OccurredAt, key: eventKey(ev), once: r.dedupeKey == nil}
	if r.dedupeKey != nil {
		var ok bool
		if c.key, ok = p.key(i, r, r.dedupeKey, "dedupe_key"); !ok {
			return
		}
	}
	if p.complete(&c) {
		p.candidates = append(p.candidates, c)
	}
}

// complete evaluates the subject and the payload of a candidate whose key is known.
func (p *Plan) complete(c *candidate) (ok bool) {
	r := c.rule
	if r.subject != nil {
		if c.subject, ok = p.key(c.batch, r, r.subject, "subject"); !ok {
			return false
		}
	}
	most := p.engine.cfg.MaxPayloadBytes
	var err error
	if r.payload == nil {
		c.payload = appendEvent(nil, p.vars.event.event)
	} else {
		c.payload, err = r.payload.append(nil, &p.vars, most)
	}
	if err == nil && len(c.payload) > most {
		err = errTooLarge
	}
	if err != nil {
		kind := failedExpression
		if errors.Is(err, errTooLarge) {
			kind = failedSize
		}
		p.fail(r, c.batch, kind, fmt.Errorf("payload: %w", err))
		return false
	}
	c.keyHash = keyHash(r, c.key)
	return true
}

// eventKey is the dedupe key of a rule that has none: each event once.
func eventKey(e *pipeline.Event) string { return "event " + e.ID.String() }

// keyHash is the key's name in the ledger.
func keyHash(r *rule, key string) pipeline.UUID {
	return pipeline.HashUUID("rule:" + r.stateKey + ":" + key)
}

var (
	errNoKey   = errors.New("null or empty")
	errLongKey = fmt.Errorf("longer than %d bytes", maxKeyBytes)
)

// key evaluates a subject or a dedupe key.
func (p *Plan) key(i int, r *rule, prg *program, what string) (string, bool) {
	text, kind, err := prg.key(&p.vars)
	if err != nil {
		p.fail(r, i, kind, fmt.Errorf("%s: %w", what, err))
	}
	return text, err == nil
}

// key gives the value of an expression as a key, or the kind of failure.
func (p *program) key(v *vars) (text, kind string, err error) {
	var out ref.Val
	if p.member != nil && p.member.text != nil && v.event != nil {
		out = types.String(p.member.text(v.event.event))
	} else if out, err = p.eval(v); err != nil {
		return "", failedExpression, err
	}
	switch v := out.(type) {
	case types.String:
		text = string(v)
	case types.Int:
		text = strconv.FormatInt(int64(v), 10)
	case types.Uint:
		text = strconv.FormatUint(uint64(v), 10)
	case types.Null:
	default:
		return "", failedExpression, fmt.Errorf("a %s can't be a key", out.Type().TypeName())
	}
	switch {
	case text == "":
		return "", failedKey, errNoKey
	case len(text) > maxKeyBytes:
		return "", failedSize, errLongKey
	}
	return text, "", nil
}

func (p *Plan) fail(r *rule, i int, kind string, err error) {
	p.failures = append(p.failures, failure{r, i, p.vars.event.event.ID, kind, err})
}
