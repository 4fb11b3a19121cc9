package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"sluice.example/sluice/pipeline"
)

const (
	// headBytes is how much of the input's beginning tells it from others.
	headBytes = 64 << 10
	// maxLine is far above what an event may have; a longer line is rejected without being held in memory.
	maxLine = 1 << 20
	// maxBody seals a batch by size: half of what the pipeline takes in one request by default.
	maxBody = 1 << 20
)

// lineReader cuts the input into batches.
type lineReader struct {
	in *bufio.Reader
	// identity goes into derived event ids: the hash of the input's head.
	identity string
	offset   int64
	line     int64
	batch    int
	buffer   []byte
	// inside is set where the input begins inside a line that was taken before: only its line break may be left of it.
	inside *openLine
	// open is the last line that was read, where it has no line break.
	open *openLine
}

// gzipMark begins a compressed file (RFC 1952: its magic number, and the only method there is).
const gzipMark = "\x1f\x8b\x08"

func newLineReader(source io.Reader, ledger *ledger, batch int) (*lineReader, error) {
	point := &ledger.point
	r := &lineReader{batch: batch, offset: point.Offset, line: point.Line, inside: point.Open}
	if ledger.file != nil {
		// What the file grows by from now on is for the next import.
		source = io.NewSectionReader(ledger.file, 0, ledger.size)
	}
	r.in = bufio.NewReaderSize(source, headBytes)
	packed := ledger.gzip
	if ledger.file == nil {
		mark, _ := r.in.Peek(len(gzipMark))
		packed = string(mark) == gzipMark
	}
	if packed {
		text, err := gzip.NewReader(r.in)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		r.in = bufio.NewReaderSize(unpacked{text}, headBytes)
	} else if ledger.file != nil {
		r.in.Reset(io.NewSectionReader(ledger.file, r.offset, ledger.size-r.offset))
		r.identity = point.Head
		return r, nil
	}
	head, err := r.in.Peek(headBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	r.identity = headHash(head)
	if ledger.file == nil {
		return r, nil
	}
	if point.TextHead == "" {
		point.TextHead = r.identity
	}
	r.identity = point.TextHead
	_, err = io.CopyN(io.Discard, r.in, r.offset)
	return r, err
}

// unpacked names what is damaged.
type unpacked struct{ text *gzip.Reader }

func (u unpacked) Read(b []byte) (int, error) {
	n, err := u.text.Read(b)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("gzip, which is damaged or ends early: %w", err)
	}
	return n, err
}

func headHash(head []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(head))
}

// next returns the next batch, or io.EOF. A last line without a line break counts.
func (r *lineReader) next() (*Batch, error) {
	b := &Batch{}
	size := 0
	if err := r.leave(); err != nil {
		return nil, err
	}
	for len(b.events) < r.batch && len(b.Rejected) < r.batch && size < maxBody {
		begin := r.offset
		line, whole, err := r.readLine()
		if len(line) == 0 && errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		r.line++
		if r.line == 1 && isUTF16(line) {
			return nil, errors.New("the input is UTF-16: convert it, as with iconv -f UTF-16 -t UTF-8")
		}
		open := errors.Is(err, io.EOF)
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte(byteOrderMark)))
		if open {
			r.open = &openLine{Offset: begin, Again: len(line) == 0}
		}
		switch {
		case len(line) == 0:
		case !whole:
			line = line[:min(len(line), 1024)]
			b.Rejected = append(b.Rejected, noEvent(r.line, fmt.Sprintf("the line is over %d bytes long", maxLine), line))
			size += len(line)
		case line[0] != '{' || !json.Valid(line):
			b.Rejected = append(b.Rejected, noEvent(r.line, "the line is not a JSON object", line))
			size += len(line)
		default:
			event := r.withID(line)
			b.events = append(b.events, event)
			b.lines = append(b.lines, r.line)
			if isOld(event) {
				b.old++
			}
			size += len(event) + 1
		}
	}
	b.end, b.lastLine, b.open = r.offset, r.line, r.open
	if len(b.events) == 0 && len(b.Rejected) == 0 {
		return nil, io.EOF
	}
	return b, nil
}

// leave reads the rest of a line that was taken before it had a line break.
func (r *lineReader) leave() error {
	inside := r.inside
	if inside == nil {
		return nil
	}
	r.inside = nil
	rest, _, err := r.readLine()
	switch {
	case errors.Is(err, io.EOF):
		r.open = inside
	case err != nil:
		return err
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Errorf("the input has grown within the line that was its last (%d), and that is stored; "+
			"--restart sends all of it", r.line)
	}
	return nil
}

// isOld reports whether event rules pass an event by. Without a time of its own it is of now.
func isOld(event []byte) bool {
	at, err := time.Parse(time.RFC3339, gjson.GetBytes(event, "occurred_at").String())
	return err == nil && time.Since(at) > RuleAge
}

// byteOrderMark begins a file as some editors and exports write it, and a line inside one that was made of several.
const byteOrderMark = "\xef\xbb\xbf"

// isUTF16 reports whether an input begins with the byte order mark of UTF-16.
func isUTF16(head []byte) bool {
	return bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff"))
}

// readLine reads up to and including the next line break; whole is false for a line over maxLine, whose
// beginning is returned. The slice is valid until the next call.
func (r *lineReader) readLine() (line []byte, whole bool, err error) {
	r.buffer = r.buffer[:0]
	whole = true
	for {
		part, err := r.in.ReadSlice('\n')
		r.offset += int64(len(part))
		if whole {
			r.buffer = append(r.buffer, part...)
			whole = len(r.buffer) <= maxLine
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return r.buffer, whole, err
		}
	}
}

// withID copies the event, and gives it a derived event_id where it has none.
func (r *lineReader) withID(line []byte) []byte {
	id := gjson.GetBytes(line, "event_id")
	if id.Exists() && id.Type != gjson.Null && id.String() != "" {
		return bytes.Clone(line)
	}
	derived := pipeline.HashUUID(r.identity + "\n" + strconv.FormatInt(r.line, 10) + "\n" + string(line)).String()
	if id.Exists() { // null or empty: put ours in its place
		return bytes.Join([][]byte{line[:id.Index], []byte(`"` + derived + `"`), line[id.Index+len(id.Raw):]}, nil)
	}
	rest := bytes.TrimSpace(line[1:])
	comma := ","
	if rest[0] == '}' {
		comma = ""
	}
	return append([]byte(`{"event_id":"`+derived+`"`+comma), rest...)
}
