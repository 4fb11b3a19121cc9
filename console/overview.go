package console

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// capabilities are what a page or a program may ask of this console.
type capabilities struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Who      string `json:"who"`
	Role     string `json:"role"`
	ReadOnly bool   `json:"read_only"`
}

func (c *Console) capabilities(_ context.Context, r *request) (any, error) {
	return capabilities{c.cfg.Name, c.src.Version, r.who.Name, r.who.Role.String(), c.cfg.ReadOnly}, nil
}

// overview answers whether all is well, and if not, what to look at first.
type overview struct {
	// Ready is why this process should get no traffic; empty where it should.
	NotReady string `json:"not_ready,omitempty"`
	// Database is why PostgreSQL does not answer this console; empty where it does.
	Database string `json:"database,omitempty"`
}

func (c *Console) overview(ctx context.Context, _ *request) (any, error) {
	var o overview
	if c.src.Ready != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := c.src.Ready(ctx); err != nil {
			o.NotReady = err.Error()
		}
	}
	if err := c.read(ctx, func(tx pgx.Tx) error { return tx.Conn().Ping(ctx) }); err != nil {
		o.Database = asProblem(err).Message
	}
	return o, nil
}
