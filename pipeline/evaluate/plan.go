package evaluate

import (
	"errors"
	"fmt"
	"strconv"

	"cel.dev/cel-go/common/types"

	"sluice/pipeline"
)

// Plan is what the rules decided about one batch, before it is known which of its events are new. Its methods are for
// one goroutine.
type Plan struct {
	engine *Engine
	events []pipeline.Event
	// looked are the events that some rule listens to.
	looked     []int
	candidates []candidate
	failures   []failure
	// refused are the rules whose decisions PostgreSQL would not store.
	refused map[*rule]error
	// What the last Record found, counted by Committed.
	outcome outcome

	record record
	vars   vars
}

// candidate is a decision before dedupe, cooldown and cap.
type candidate struct {
	rule    *rule
	event   int
	subject string
	key     string
	keyHash pipeline.UUID
	payload []byte
}

// failure is a rule that could not decide about an event.
type failure struct {
	rule  *rule
	event int
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
func (p *Plan) look(i int, lists ...[]listener) {
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
	if l.match != nil {
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
	p.candidate(i, l.rule)
}

func (p *Plan) candidate(i int, r *rule) {
	c := candidate{rule: r, event: i, key: eventKey(&p.events[i])}
	var kind string
	var err error
	if r.subject != nil {
		if c.subject, kind, err = p.key(r.subject); err != nil {
			p.fail(r, i, kind, fmt.Errorf("subject: %w", err))
			return
		}
	}
	if r.dedupeKey != nil {
		if c.key, kind, err = p.key(r.dedupeKey); err != nil {
			p.fail(r, i, kind, fmt.Errorf("dedupe_key: %w", err))
			return
		}
	}
	most := p.engine.cfg.MaxPayloadBytes
	if r.payload == nil {
		c.payload = appendEvent(nil, &p.events[i])
	} else if c.payload, err = r.payload.append(nil, &p.vars, most); err != nil && !errors.Is(err, errTooLarge) {
		p.fail(r, i, failedExpression, fmt.Errorf("payload: %w", err))
		return
	}
	if len(c.payload) > most {
		p.fail(r, i, failedSize, fmt.Errorf("payload: %w", errTooLarge))
		return
	}
	c.keyHash = keyHash(r, c.key)
	p.candidates = append(p.candidates, c)
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
func (p *Plan) key(prg *program) (text, kind string, err error) {
	out, err := prg.eval(&p.vars)
	if err != nil {
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

func (p *Plan) fail(r *rule, event int, kind string, err error) {
	p.failures = append(p.failures, failure{r, event, kind, err})
}
