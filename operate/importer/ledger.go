package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// checkpoint is how far a file is imported; it lies beside the file as FILE.import.
type checkpoint struct {
	// Head is the hash of the first HeadBytes of the file. It tells the file from others and goes into derived ids,
	// so it stays when the file grows.
	Head      string    `json:"head"`
	HeadBytes int64     `json:"head_bytes"`
	Size      int64     `json:"size"`
	Modified  time.Time `json:"modified"`
	// Offset and Line end the acknowledged prefix.
	Offset int64 `json:"offset"`
	Line   int64 `json:"line"`
	// RejectedBytes is the length of the file of rejected events at this point.
	RejectedBytes int64 `json:"rejected_bytes"`
	Stored        int64 `json:"stored"`
	Duplicate     int64 `json:"duplicate"`
	Rejected      int64 `json:"rejected"`
}

// ledger puts what became of batches in the input's order and keeps the checkpoint. Rejected events are on disk
// before the checkpoint that counts them.
type ledger struct {
	file         *os.File // nil for standard input
	path         string   // of the checkpoint
	size         int64
	rejectedFile string // empty: nowhere

	mu       sync.Mutex
	point    checkpoint
	waiting  map[int]*Batch
	next     int
	rejected *os.File
	savedAt  time.Time
}

// saveEvery bounds how often the checkpoint is written. What is lost by a crash is sent again, as duplicates.
const saveEvery = 200 * time.Millisecond

func openLedger(file *os.File, o Options) (*ledger, error) {
	name := o.File
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; pipe it in with \"pipeline import -\"", name)
	}
	l := &ledger{file: file, path: name + ".import", size: info.Size(), rejectedFile: o.Rejected}
	if l.rejectedFile == "" {
		l.rejectedFile = name + ".rejected.ndjson"
	}
	fresh := checkpoint{HeadBytes: min(info.Size(), headBytes), Size: info.Size(), Modified: info.ModTime().UTC()}
	if fresh.Head, err = l.hashHead(fresh.HeadBytes); err != nil {
		return nil, err
	}
	l.point = fresh
	text, err := os.ReadFile(l.path)
	if errors.Is(err, os.ErrNotExist) || o.Restart {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	var old checkpoint
	if err := json.Unmarshal(text, &old); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it to begin again", l.path, err)
	}
	head, err := l.hashHead(old.HeadBytes)
	if err != nil {
		return nil, err
	}
	switch {
	case head != old.Head || info.Size() < old.Size || info.Size() == old.Size &&
		!info.ModTime().UTC().Equal(old.Modified):
		return nil, fmt.Errorf("%s is not the file that was imported up to line %d (its size, time or beginning differs); "+
			"--restart sends all of it, and events with an event_id are not stored twice", name, old.Line)
	case info.Size() > old.Size && old.Offset == old.Size && !l.endsLine(old.Offset):
		return nil, fmt.Errorf("%s has grown within the line that was its last (%d); --restart sends all of it", name,
			old.Line)
	}
	l.point = old
	l.point.Size, l.point.Modified = fresh.Size, fresh.Modified
	return l, nil
}

func (l *ledger) hashHead(n int64) (string, error) {
	head, err := io.ReadAll(io.NewSectionReader(l.file, 0, n))
	return headHash(head), err
}

func (l *ledger) endsLine(offset int64) bool {
	b := make([]byte, 1)
	_, err := l.file.ReadAt(b, max(0, offset-1))
	return err == nil && (offset == 0 || b[0] == '\n')
}

func (l *ledger) complete() bool {
	return l.file != nil && l.point.Offset > 0 && l.point.Offset == l.size
}

// openRejected makes the file of rejected events as long as the checkpoint says, so that a line is never in it twice.
func (l *ledger) openRejected() error {
	if l.rejectedFile == "" {
		return nil
	}
	if l.point.RejectedBytes == 0 {
		// It is made again when there is something to put into it.
		if info, err := os.Lstat(l.rejectedFile); err == nil && info.Mode().IsRegular() {
			return os.Remove(l.rejectedFile)
		}
		return nil
	}
	f, err := os.OpenFile(l.rejectedFile, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	l.rejected = f
	if err := f.Truncate(l.point.RejectedBytes); err != nil {
		return err
	}
	_, err = f.Seek(0, io.SeekEnd)
	return err
}

// done takes an answered batch and returns how many batches joined the acknowledged prefix by it.
func (l *ledger) done(b *Batch) (advanced int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[int]*Batch{}
	}
	l.waiting[b.number] = b
	for {
		b, ok := l.waiting[l.next]
		if !ok {
			break
		}
		delete(l.waiting, l.next)
		if err := l.writeRejected(b.Rejected); err != nil {
			return advanced, err
		}
		l.point.Offset, l.point.Line = b.end, b.lastLine
		l.point.Stored += b.Stored
		l.point.Duplicate += b.Duplicate
		l.point.Rejected += int64(len(b.Rejected))
		l.next++
		advanced++
	}
	if advanced > 0 && time.Since(l.savedAt) >= saveEvery {
		return advanced, l.saveLocked()
	}
	return advanced, nil
}

func (l *ledger) writeRejected(lines []RejectedLine) error {
	if len(lines) == 0 || l.rejectedFile == "" {
		return nil
	}
	if l.rejected == nil {
		f, err := os.OpenFile(l.rejectedFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		l.rejected = f
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	for _, line := range lines {
		if err := e.Encode(line); err != nil {
			return err
		}
	}
	n, err := l.rejected.Write(text.Bytes())
	l.point.RejectedBytes += int64(n)
	return err
}

// saveLocked puts the checkpoint into place whole: a crash leaves the old one or the new one.
func (l *ledger) saveLocked() error {
	l.savedAt = time.Now()
	if l.file == nil {
		return nil
	}
	text, err := json.MarshalIndent(l.point, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.path+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(l.path+".new", l.path)
}

// close saves the checkpoint. At the end of the input its last empty lines count as acknowledged too.
func (l *ledger) close(complete bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if complete {
		l.point.Offset = l.size
	}
	err := l.saveLocked()
	if l.rejected != nil {
		err = errors.Join(err, l.rejected.Close())
	}
	return err
}

func (l *ledger) snapshot() checkpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.point
}
