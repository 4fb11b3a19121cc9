// Package books compares what a process counted since it started with what the database holds since then, per tenant:
// the answer of GET /v1/books, the client that asks for it, and the equations of the promise that the books balance.
package books

import (
	"fmt"
	"io"
	"strings"
)

// Answer is the answer of /v1/books.
type Answer struct {
	// Since is where the database side begins to count; the process side always counts from its start.
	Since string `json:"since"`
	// Mark is this moment, for the since of a later question.
	Mark string `json:"mark"`
	// OtherWriters is how many other processes may have stored events or decided since this one started. Where there are
	// any, the database side is everybody's part, and is not compared with the process side.
	OtherWriters int `json:"other_writers"`
	// Suppressed are decisions that made no message, of all tenants.
	Suppressed int64    `json:"suppressed"`
	Tenants    []Tenant `json:"tenants"`
}

// Tenant is the books of one tenant.
type Tenant struct {
	Tenant      int32       `json:"tenant"`
	Name        string      `json:"name,omitempty"`
	Process     Process     `json:"process"`
	Database    Database    `json:"database"`
	Differences Differences `json:"differences"`
}

// Process counts events, and decided messages, as one process saw them.
type Process struct {
	Received    int64 `json:"received"`
	Rejected    int64 `json:"rejected"`
	Refused     int64 `json:"refused"`
	InFlight    int64 `json:"in_flight"`
	Failed      int64 `json:"failed"`
	Stored      int64 `json:"stored"`
	Duplicate   int64 `json:"duplicate"`
	Quarantined int64 `json:"quarantined"`
	Decided     int64 `json:"decided"`
}

// Difference is zero at every moment: received = stored + duplicate + rejected + refused + failed + quarantined + in
// flight. Received begins where a request is decoded.
func (p Process) Difference() int64 {
	return p.Received - p.Stored - p.Duplicate - p.Rejected - p.Refused - p.Failed - p.Quarantined - p.InFlight
}

// Database counts rows. Twice are those that have the id of another, Decided the messages of rules, Enqueued those of
// applications.
type Database struct {
	Stored   int64 `json:"stored"`
	Twice    int64 `json:"twice"`
	Decided  int64 `json:"decided"`
	Enqueued int64 `json:"enqueued"`
	Due      int64 `json:"due"`
	Leased   int64 `json:"leased"`
	Sent     int64 `json:"sent"`
	Skipped  int64 `json:"skipped"`
	Dead     int64 `json:"dead"`
}

// Open counts the messages that are not final.
func (d Database) Open() int64 { return d.Due + d.Leased }

// Difference is zero at every moment: decided + enqueued = sent + skipped + dead + due + leased.
func (d Database) Difference() int64 {
	return d.Decided + d.Enqueued - d.Sent - d.Skipped - d.Dead - d.Open()
}

// Differences are zero, or something is wrong. Stored and Decided, those between the two sides, are left out where the
// sides do not count the same: from another moment, where other processes have written, or while events are on their
// way.
type Differences struct {
	Received int64  `json:"received"`
	Promises int64  `json:"promises"`
	Twice    int64  `json:"twice"`
	Stored   *int64 `json:"stored,omitempty"`
	Decided  *int64 `json:"decided,omitempty"`
}

// compare fills in the differences, those between the sides where both count the same.
func (t *Tenant) compare(sides bool) {
	t.Differences = Differences{Received: t.Process.Difference(), Promises: t.Database.Difference(),
		Twice: t.Database.Twice}
	if sides {
		stored := t.Process.Stored - t.Database.Stored
		decided := t.Process.Decided - t.Database.Decided
		t.Differences.Stored, t.Differences.Decided = &stored, &decided
	}
}

// Difference is one that is not zero.
type Difference struct {
	What string
	By   int64
}

// NotZero lists the differences that something is wrong with, in the order of the answer.
func (d Differences) NotZero() (wrong []Difference) {
	add := func(what string, by *int64) {
		if by != nil && *by != 0 {
			wrong = append(wrong, Difference{what, *by})
		}
	}
	add("received", &d.Received)
	add("promises", &d.Promises)
	add("twice", &d.Twice)
	add("stored", d.Stored)
	add("decided", d.Decided)
	return wrong
}

// Err is the first difference that is not zero, or nil.
func (a *Answer) Err() error {
	for _, t := range a.Tenants {
		for _, d := range t.Differences.NotZero() {
			return fmt.Errorf("tenant %d: %s differ by %d", t.Tenant, d.What, d.By)
		}
	}
	return nil
}

// Print writes the books for people.
func (a *Answer) Print(w io.Writer) error {
	var b strings.Builder
	since, _, _ := strings.Cut(a.Since, "_")
	fmt.Fprintf(&b, "Books since %s; to go on from here: --since %s\n", since, a.Mark)
	if a.OtherWriters > 0 {
		fmt.Fprintf(&b, "Other processes have written to this database since this one started (%d): the process is its own "+
			"part,\nthe database everybody's, and the two are not compared.\n", a.OtherWriters)
	}
	for _, t := range a.Tenants {
		p, db := t.Process, t.Database
		fmt.Fprintf(&b, "\ntenant %d %s\n", t.Tenant, t.Name)
		fmt.Fprintf(&b, "  the process: received %d = stored %d + duplicate %d + rejected %d + refused %d + failed %d"+
			" + quarantined %d + in flight %d\n",
			p.Received, p.Stored, p.Duplicate, p.Rejected, p.Refused, p.Failed, p.Quarantined, p.InFlight)
		fmt.Fprintf(&b, "               decided %d\n", p.Decided)
		fmt.Fprintf(&b, "  the database: stored %d, of which %d under the id of another\n", db.Stored, db.Twice)
		fmt.Fprintf(&b, "               decided %d + enqueued %d = sent %d + skipped %d + dead %d + due %d + leased %d\n",
			db.Decided, db.Enqueued, db.Sent, db.Skipped, db.Dead, db.Due, db.Leased)
		for _, d := range t.Differences.NotZero() {
			fmt.Fprintf(&b, "  DIFFERENCE   %s: %d\n", d.What, d.By)
		}
	}
	fmt.Fprintf(&b, "\nsuppressed by rules (all tenants): %d\n", a.Suppressed)
	_, err := io.WriteString(w, b.String())
	return err
}
