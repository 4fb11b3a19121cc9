package console

import (
	"context"

	"sluice.example/sluice/operate/nodes"
)

// nodeList are the processes on the database, as "pipeline nodes --json" has them.
type nodeList struct {
	nodes.Answer
	known
}

func (c *Console) nodes(ctx context.Context, _ *request) (any, error) {
	report, known, err := c.known(ctx)
	if err != nil {
		return nil, err
	}
	return nodeList{nodes.Answer{Nodes: report.Nodes}, known}, nil
}
