package memory

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimitMemory(t *testing.T) {
	now := func() int { return int(debug.SetMemoryLimit(-1)) }
	before := now()
	for _, c := range []struct {
		env     string
		reading int
		want    int
	}{
		{"", 0, 256<<20 + Besides},
		{"", 40 << 20, 256<<20 + Besides + 32<<20},
		{"1GiB", 40 << 20, before},
	} {
		t.Setenv("GOMEMLIMIT", c.env)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Limit(ctx, 256<<20, func() int { return c.reading }) }()
			time.Sleep(5 * time.Second)
			select {
			case err := <-ended:
				t.Fatalf("GOMEMLIMIT=%q: it ended with %v, which stops the process", c.env, err)
			default:
			}
			if got := now(); got != c.want {
				t.Errorf("GOMEMLIMIT=%q, %d bytes of bodies: the limit is %d, want %d", c.env, c.reading, got, c.want)
			}
			cancel()
			if err := <-ended; err != nil || now() != before {
				t.Errorf("it ended with %v and a limit of %d, want that from before, %d", err, now(), before)
			}
		})
	}
}
