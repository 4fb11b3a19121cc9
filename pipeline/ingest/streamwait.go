package ingest

import (
	"errors"
	"io"
	"os"
	"time"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// What a stream holds, and what it waits for. Every wait ends when its client is gone, and with ingest.idle-timeout.

var (
	errLimited = errors.New("over the tenant's limits")
	errNoRoom  = errors.New("too many bodies at once")
	errGone    = errors.New("the client closed the connection")
)

// pause waits a moment for what a stream can't go on without: cause, since begin.
func (st *stream) pause(d time.Duration, begin time.Time, cause error) error {
	if st.gone.Err() != nil {
		return errGone
	}
	if time.Since(begin) > st.s.cfg.IdleTimeout {
		return cause
	}
	if !wait.For(st.s.drain, min(d, time.Second)) {
		return pipeline.ErrClosed
	}
	st.mu.Lock()
	err := st.err
	st.mu.Unlock()
	if err := st.revoked(); err != nil {
		return err
	}
	switch {
	case err == io.EOF: // it waits for its verdicts, perhaps with its own side closed
		return nil
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded): // it may well be silent while it waits for an answer
		return err
	case hungUp(st.conn):
		return errGone
	}
	return nil
}

// hold counts n bytes more for the stream, and waits until there is room for them.
func (st *stream) hold(n int) error {
	for begin := time.Now(); ; {
		st.mu.Lock()
		ok := st.s.bodies.Reserve(&st.memory, n)
		st.mu.Unlock()
		if ok {
			return nil
		}
		if err := st.pause(100*time.Millisecond, begin, errNoRoom); err != nil {
			return err
		}
	}
}

func (st *stream) unhold(n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.bodies.Return(&st.memory, n)
}

// keep appends a piece that has come to buf. Meanwhile the other side may empty buf, or exchange it.
func (st *stream) keep(piece []byte) error {
	for held := 0; ; {
		st.mu.Lock()
		need := len(st.buf) + len(piece)
		if grown := max(2*cap(st.buf), need, 4<<10); need > cap(st.buf) && held < grown {
			st.mu.Unlock()
			if err := st.hold(grown - held); err != nil {
				return err
			}
			held = grown
			continue
		}
		if need > cap(st.buf) {
			old := cap(st.buf)
			st.buf = append(make([]byte, 0, held), st.buf...)
			held = old
		}
		st.buf = append(st.buf, piece...)
		st.s.bodies.Return(&st.memory, held)
		st.mu.Unlock()
		return nil
	}
}

// takeOver moves what has come in to chunk, and returns how much that is, and why no more will come. A stream of which
// nothing has come in gives back what its last chunks needed.
func (st *stream) takeOver() (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := len(st.buf)
	if n == 0 {
		if len(st.chunk) == 0 && cap(st.chunk) > pieceBytes {
			st.s.bodies.Return(&st.memory, cap(st.chunk))
			st.chunk = nil
		}
		if cap(st.buf) > pieceBytes {
			st.s.bodies.Return(&st.memory, cap(st.buf))
			st.buf = nil
		}
		return 0, st.err
	}
	if len(st.chunk) == 0 {
		st.chunk, st.buf = st.buf, st.chunk
		return n, nil
	}
	if need := len(st.chunk) + n; need > cap(st.chunk) {
		grown := max(2*cap(st.chunk), need)
		if !st.s.bodies.Reserve(&st.memory, grown) {
			return n, errNoRoom
		}
		old := cap(st.chunk)
		st.chunk = append(make([]byte, 0, grown), st.chunk...)
		st.s.bodies.Return(&st.memory, old)
	}
	st.chunk = append(st.chunk, st.buf...)
	st.buf = st.buf[:0]
	return n, nil
}
