package ingest

import (
	"errors"
	"time"

	"sluice.example/sluice/internal/tenants"
)

// callers are those who may send: the content of one tenants file.
type callers struct {
	tenants.Set
	limits   map[int32]tenants.Limits
	limiters map[int32]*tenants.Limiter // a tenant without limits has none
	replaced chan struct{}              // closed when others are in force
}

var errRevoked = errors.New("the write key is no longer known")

// use puts tenants in force. A tenant whose limits stay keeps what it has used of them. Streams whose key is gone, or
// is another tenant's now, end.
func (s *Server) use(who tenants.Set) {
	next := &callers{Set: who, limits: who.Limits(), limiters: map[int32]*tenants.Limiter{}, replaced: make(chan struct{})}
	old := s.callers.Load()
	for tenant, l := range next.limits {
		if old != nil && old.limits[tenant] == l {
			next.limiters[tenant] = old.limiters[tenant]
		} else {
			next.limiters[tenant] = tenants.NewLimiter(l, time.Now())
		}
	}
	s.metrics.begin(who.IDs())
	s.bodies.Several(len(who.IDs()) > 1)
	s.callers.Store(next)
	if old != nil {
		close(old.replaced)
	}
}

// Reload puts the tenants that load returns in force. After an error those from before stay. One call at a time.
func (s *Server) Reload(load func() (tenants.Set, error)) error {
	who, err := load()
	if err != nil {
		s.metrics.reloadOK.Set(0)
		s.log.Error("the tenants file was not reloaded; the tenants from before stay in force", "error", err)
		return err
	}
	s.use(who)
	s.metrics.reloadOK.Set(1)
	s.log.Info("tenants reloaded", "tenants", len(who.IDs()))
	return nil
}

func (s *Server) limiter(tenant int32) *tenants.Limiter { return s.callers.Load().limiters[tenant] }

// revoked returns an error where the stream's key is no longer its tenant's.
func (st *stream) revoked() error {
	now := st.s.callers.Load()
	if now == st.admitted.Load() {
		return nil
	}
	if tenant, ok := now.OfKey(st.key); !ok || tenant != st.tenant {
		return errRevoked
	}
	st.admitted.Store(now)
	return nil
}
