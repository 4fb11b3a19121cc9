package books

import (
	"context"
	"errors"
	"sync"
)

// maxWaiting bounds the different questions that wait for their turn. A guess: operators ask one.
const maxWaiting = 16

var errBusy = errors.New("too many different books are asked for at once; ask again")

// turns reads one book after another, however many ask. Those who ask for the same one while they wait share its
// answer, which is never older than their questions.
type turns struct {
	mu      sync.Mutex
	waiting map[mark]*turn
	free    chan struct{} // holds a token while nobody reads
}

func newTurns() *turns {
	t := &turns{waiting: map[mark]*turn{}, free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// turn is one reading, for everybody who asked for it before it began.
type turn struct {
	done   chan struct{}
	answer *Answer
	err    error
	asking int // under mu; with the last of them the reading ends
	end    context.CancelFunc
}

// read returns what f returns for a mark. f runs until everybody who waits for it has gone.
func (t *turns) read(ctx context.Context, since mark, f func(context.Context) (*Answer, error)) (*Answer, error) {
	t.mu.Lock()
	mine := t.waiting[since]
	if mine == nil {
		if len(t.waiting) >= maxWaiting {
			t.mu.Unlock()
			return nil, errBusy
		}
		mine = &turn{done: make(chan struct{})}
		var work context.Context
		work, mine.end = context.WithCancel(context.WithoutCancel(ctx))
		t.waiting[since] = mine
		go t.run(work, since, mine, f)
	}
	mine.asking++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.asking--; mine.asking == 0 {
			mine.end()
			if t.waiting[since] == mine { // it has not begun, and nobody wants it
				delete(t.waiting, since)
			}
		}
	}()
	select {
	case <-mine.done:
		return mine.answer, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *turns) run(ctx context.Context, since mark, mine *turn, f func(context.Context) (*Answer, error)) {
	defer close(mine.done)
	select {
	case <-t.free:
		defer func() { t.free <- struct{}{} }()
	case <-ctx.Done():
		mine.err = ctx.Err()
		return
	}
	t.mu.Lock()
	if t.waiting[since] == mine {
		delete(t.waiting, since)
	}
	t.mu.Unlock()
	mine.answer, mine.err = f(ctx)
}
