package deliver

import (
	"time"

	"sluice.example/sluice/pipeline"
)

// sink is a way to deliver to one destination. Its methods are safe for concurrent use.
type sink interface {
	// send makes one attempt at the time now, and returns at the deadline at the latest. It borrows the lease.
	send(lease *pipeline.Lease, now, deadline time.Time) answer
	// abort ends the sends that are under way; they fail. None is started after it.
	abort()
	// close frees what is kept for later sends. None is under way then.
	close()
}
