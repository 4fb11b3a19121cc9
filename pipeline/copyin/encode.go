package copyin

import (
	"io"
	"strings"

	"sluice.example/sluice/internal/pgcopy"
	"sluice.example/sluice/pipeline"
)

// columns are in the order of appendRow.
var columns = strings.Split(pipeline.EventColumns, ", ")

// appendRow appends one row of a COPY of columns.
func appendRow(b []byte, e *pipeline.Event) []byte {
	b = pgcopy.Row(b, len(columns))
	b = pgcopy.UUID(b, e.ID)
	b = pgcopy.Int32(b, e.Tenant)
	b = pgcopy.Text(b, e.Name)
	b = pgcopy.Time(b, e.OccurredAt)
	b = appendOptional(b, e.AnonymousID)
	b = appendOptional(b, e.UserID)
	b = appendOptional(b, e.SessionID)
	b = appendOptional(b, e.PageURL)
	b = appendOptional(b, e.Referrer)
	b = appendOptional(b, e.UserAgent)
	if len(e.Properties) == 0 {
		b = pgcopy.Null(b)
	} else {
		b = pgcopy.JSONB(b, e.Properties)
	}
	b = pgcopy.Time(b, e.ReceivedAt)
	return appendOptional(b, e.ClientID)
}

// appendOptional appends a field that the client may have left out.
func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return pgcopy.Null(b)
	}
	return pgcopy.Text(b, s)
}

// rowReader reads chosen rows of an encoded batch as one COPY stream.
type rowReader struct {
	parts [][]byte
}

func (r *rowReader) Read(p []byte) (n int, err error) {
	for n < len(p) && len(r.parts) > 0 {
		m := copy(p[n:], r.parts[0])
		n += m
		if r.parts[0] = r.parts[0][m:]; len(r.parts[0]) == 0 {
			r.parts = r.parts[1:]
		}
	}
	if n == 0 && len(r.parts) == 0 {
		return 0, io.EOF
	}
	return n, nil
}
