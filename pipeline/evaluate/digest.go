package evaluate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// Digest records one message for each subject whose held back decisions are due to be told. What belongs to no rule in
// force, or to one that has no digest any more, is dropped. Call committed after COMMIT.
func (e *Engine) Digest(ctx context.Context, tx pgx.Tx, held []pipeline.Held) (committed func(), err error) {
	p := &Plan{recorder: recorder{engine: e}}
	p.reset()
	set := e.set.Load()
	for _, h := range held {
		if set == nil || set.byState[h.State] == nil || set.byState[h.State].limits.digestAfter == 0 {
			continue
		}
		p.digest(set.byState[h.State], h)
	}
	p.outcome.failures = p.failures
	return p.Committed, p.write(ctx, tx, work{cands: p.candidates})
}

func (p *Plan) digest(r *rule, h pipeline.Held) {
	raw, _ := json.Marshal(struct { // can't fail
		Count   int64  `json:"count"`
		Subject string `json:"subject"`
		Since   string `json:"since"`
	}{h.Count, h.Subject, h.Since.UTC().Format(time.RFC3339Nano)})
	p.events = make([]pipeline.Event, 1)
	p.record.set(&p.events[0])
	p.vars = vars{event: &p.record, digest: &object{raw: string(raw)}}
	c := candidate{rule: r, tenant: h.Tenant, subject: h.Subject, unlimited: true, once: true,
		key: fmt.Sprintf("digest %s@%d", h.Subject, h.Since.UnixMicro())}
	c.keyHash = keyHash(r, c.key)
	c.payload = raw
	if r.digest != nil {
		var err error
		if c.payload, err = r.digest.append(nil, &p.vars, p.engine.cfg.MaxPayloadBytes); err != nil {
			p.fail(r, 0, failedExpression, fmt.Errorf("digest.payload: %w", err))
			return
		}
	}
	p.candidates = append(p.candidates, c)
}
