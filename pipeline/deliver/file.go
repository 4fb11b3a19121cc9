package deliver

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// file reads a destination that is a file of JSON lines, or stdout.
func (r *reader) file() {
	path, sync := r.String("path"), r.Bool("sync", false)
	r.Require("path", "a file, or - for stdout")
	r.envelope(envelope.Plain, envelope.CloudEventsBinary) // a line has no headers
	r.d.open = func(guard) sink {
		return &fileSink{path: path, sync: sync, envelope: r.d.envelope, tenants: r.d.tenants}
	}
}

// fileSink appends one line for each message. The file is opened for each one, so that it may be moved away at any
// time.
type fileSink struct {
	path string
	sync bool // to the disk before a message counts as sent

	envelope envelope.Kind
	tenants  envelope.Tenants

	mu      sync.Mutex
	aborted bool
	stdout  *os.File // set by the first message that goes there
	torn    bool     // a pipe has the beginning of a line
}

func (f *fileSink) send(lease *pipeline.Lease, _, deadline time.Time) answer {
	line := append(f.line(lease), '\n')
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.aborted {
		return answer{err: os.ErrClosed}
	}
	if f.path == "-" {
		if f.stdout == nil {
			f.stdout = openStdout()
		}
		return fileAnswer(f.write(f.stdout, line, deadline))
	}
	// A pipe that nobody reads is a failure, and not a wait without end.
	w, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return answer{err: err}
	}
	err = f.write(w, line, deadline)
	if err == nil && f.sync {
		err = w.Sync()
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	return fileAnswer(err)
}

// write appends a line, until the deadline where w has one: pipes do, regular files do not. A line that breaks off, on
// a full disk or in a pipe that nobody empties, is no line that the next one is glued to.
func (f *fileSink) write(w *os.File, line []byte, deadline time.Time) error {
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	_ = w.SetWriteDeadline(deadline)
	n, err := w.Write(line)
	if n > 0 {
		f.torn = false
	}
	if err != nil && n > 0 {
		end, seekErr := w.Seek(0, io.SeekEnd)
		if f.torn = seekErr != nil; !f.torn {
			w.Truncate(end - int64(n))
		}
	}
	return err
}

// openStdout opens a pipe again, where the system lets us: with a deadline for writes, which the one that we were
// started with lacks, and could get only together with all who share it.
func openStdout() *os.File {
	info, err := os.Stdout.Stat()
	if err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", os.Stdout.Fd()), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			return again
		}
	}
	return os.Stdout
}

// line is a message in its envelope; the plain one has what a webhook has in its headers as well.
func (f *fileSink) line(lease *pipeline.Lease) []byte {
	body := f.envelope.Append(nil, &lease.Message, f.tenants)
	if f.envelope != envelope.Plain {
		return body
	}
	b := make([]byte, 0, len(body)+256)
	b = append(b, `{"idempotency_key":"`...)
	b = append(b, lease.IdempotencyKey.String()...)
	b = append(b, `","tenant_id":`...)
	b = strconv.AppendInt(b, int64(lease.Tenant), 10)
	b = append(b, `,"tenant":`...)
	b = jsontext.AppendString(b, f.tenants.Name(lease.Tenant))
	b = append(b, `,"subject_key":`...)
	b = jsontext.AppendString(b, lease.SubjectKey)
	b = append(b, `,"created_at":"`...)
	b = lease.CreatedAt.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `",`...)
	return append(b, body[1:]...)
}

func fileAnswer(err error) answer {
	if err != nil {
		return answer{err: err}
	}
	return answer{status: 200}
}

func (f *fileSink) abort() {
	f.mu.Lock()
	f.aborted = true
	f.mu.Unlock()
}

func (f *fileSink) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stdout != nil && f.stdout != os.Stdout {
		f.stdout.Close()
	}
}
