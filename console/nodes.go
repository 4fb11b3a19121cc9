package console

import (
	"context"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/nodes"
)

// nodes are the processes on the database, as "pipeline nodes --json" has them.
func (c *Console) nodes(ctx context.Context, _ *request) (any, error) {
	var answer nodes.Answer
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		answer.Nodes, err = nodes.List(ctx, tx)
		return err
	})
	return answer, err
}
