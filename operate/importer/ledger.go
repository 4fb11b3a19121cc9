package importer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
	// TextHead is the hash of the head of a compressed file's text; it goes into derived ids in place of Head.
	TextHead string `json:"text_head,omitempty"`
	// Done: all of a file of that size is acknowledged.
	Done bool `json:"done"`
	// Offset and Line end the acknowledged prefix.
	Offset int64 `json:"offset"`
	Line   int64 `json:"line"`
	// Open is the last line of the acknowledged prefix where it has no line break, since the file may go on in it.
	Open *openLine `json:"open_line,omitempty"`
	// RejectedBytes is the length of the file of rejected events at this point.
	RejectedBytes int64 `json:"rejected_bytes"`
	Stored        int64 `json:"stored"`
	Duplicate     int64 `json:"duplicate"`
	Rejected      int64 `json:"rejected"`
}

// openLine is a line that was taken without its line break.
type openLine struct {
	// Offset is where it begins.
	Offset int64 `json:"offset"`
	// Again: nothing of it is stored, as it was rejected or blank, so it is read again once there is more of it.
	// Rejected: it is one of those in the file of rejected events, from byte RejectedFrom on.
	Again        bool  `json:"again"`
	Rejected     bool  `json:"rejected,omitempty"`
	RejectedFrom int64 `json:"rejected_from,omitempty"`
}

// ledger puts what became of batches in the input's order and keeps the checkpoint. Rejected events are on disk
// before the checkpoint that counts them.
type ledger struct {
	file         *os.File // nil for standard input
	path         string   // of the checkpoint
	size         int64
	gzip         bool   // offsets are those of the text
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
	if l.gzip, err = l.isGzip(); err != nil {
		return nil, err
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
	if head != old.Head || info.Size() < old.Size || info.Size() == old.Size &&
		!info.ModTime().UTC().Equal(old.Modified) {
		return nil, fmt.Errorf("%s is not the file that was imported up to line %d (its size, time or beginning differs); "+
			"--restart sends all of it, and events with an event_id are not stored twice", name, old.Line)
	}
	if info.Size() > old.Size {
		old.Done = false
		old.reopen()
	}
	l.point = old
	l.point.Size, l.point.Modified = fresh.Size, fresh.Modified
	return l, nil
}

func (l *ledger) hashHead(n int64) (string, error) {
	head, err := io.ReadAll(io.NewSectionReader(l.file, 0, n))
	return headHash(head), err
}

func (l *ledger) isGzip() (bool, error) {
	head := make([]byte, len(gzipMark))
	n, err := l.file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(head[:n]) == gzipMark, nil
}

// reopen goes back to the beginning of an open line of which nothing is stored, and withdraws its rejection.
func (c *checkpoint) reopen() {
	open := c.Open
	if open == nil || !open.Again {
		return
	}
	c.Offset, c.Open = open.Offset, nil
	c.Line--
	if open.Rejected {
		c.Rejected--
		c.RejectedBytes = open.RejectedFrom
	}
}

func (l *ledger) complete() bool {
	return l.file != nil && l.point.Done
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
		slices.SortFunc(b.Rejected, func(x, y RejectedLine) int { return cmp.Compare(x.Line, y.Line) })
		last, err := l.writeRejected(b.Rejected)
		if err != nil {
			return advanced, err
		}
		l.point.Offset, l.point.Line, l.point.Open = b.end, b.lastLine, b.open
		if n := len(b.Rejected); b.open != nil && n > 0 && b.Rejected[n-1].Line == b.lastLine {
			b.open.Again, b.open.Rejected, b.open.RejectedFrom = true, true, last
		}
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

// writeRejected appends lines to the file of rejected events, and returns at which byte of it the last one begins.
func (l *ledger) writeRejected(lines []RejectedLine) (last int64, err error) {
	if len(lines) == 0 || l.rejectedFile == "" {
		return l.point.RejectedBytes, nil
	}
	if l.rejected == nil {
		f, err := os.OpenFile(l.rejectedFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return 0, err
		}
		l.rejected = f
	}
	var text []byte
	for i := range lines {
		last = l.point.RejectedBytes + int64(len(text))
		if text, err = lines[i].append(text); err != nil {
			return 0, err
		}
	}
	n, err := l.rejected.Write(text)
	l.point.RejectedBytes += int64(n)
	return last, err
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

// close saves the checkpoint. Where all of the input that r has read is acknowledged, that holds for its last empty
// lines too.
func (l *ledger) close(complete bool, r *lineReader) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if complete {
		if r.offset > l.point.Offset {
			l.point.Open = r.open
		}
		l.point.Offset, l.point.Line, l.point.Done = r.offset, r.line, true
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
