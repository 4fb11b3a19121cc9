package rules

import (
	"slices"
	"time"
)

// MaxMoments is how many moments of a subject are kept: what a quota can ask for, and as many that lie ahead.
const MaxMoments = 2 * MaxCap

// maxAhead is how many deferred messages a subject may have; what comes then is not sent.
const maxAhead = MaxCap

// maxMoves is how often a message is moved until all its limits have room: two quiet hours may leave no time at all.
const maxMoves = 100

// Counted reports whether the quota remembers what it granted.
func (u *Under) Counted() bool { return u.Quota.AtMost > 0 }

// room returns from when on a quota lets a message through that is due at some time. full is true where so many wait
// that it is none.
//
// A quota counts what it granted in the time before, and ahead. So no window of its length ever has more, in whatever
// order messages were asked for.
func (u *Under) room(moments []time.Time, now, due time.Time) (at time.Time, full bool) {
	q, at := u.Quota, due
	if n := len(moments); q.AtMost > 0 && n >= q.AtMost {
		if free := moments[q.AtMost-1].Add(q.Per); free.After(at) {
			at = free
		}
		full = n >= maxAhead && moments[maxAhead-1].After(now)
	}
	if end := u.quietUntil(at); !end.IsZero() {
		at = end
	}
	return at, full
}

// Slot returns when a message that is due at some time may be sent. The moments are those of each quota that were
// granted before, latest first. If it may not be sent at all, by is the quota that holds it back, and otherwise -1.
func Slot(under []Under, moments [][]time.Time, now, due time.Time) (at time.Time, by int) {
	at, by = due, -1
	for range maxMoves {
		moved := false
		for i := range under {
			next, full := under[i].room(moments[i], now, at)
			switch {
			case full || next.After(at) && !under[i].Quota.Defer:
				return due, i
			case next.After(at):
				at, by, moved = next, i, true
			}
		}
		if !moved {
			return at, -1
		}
	}
	return due, by
}

// Granted adds a moment to those of a quota, latest first.
func Granted(moments []time.Time, at time.Time) []time.Time {
	i, _ := slices.BinarySearchFunc(moments, at, func(m, at time.Time) int { return at.Compare(m) })
	moments = slices.Insert(slices.Clone(moments), i, at)
	return moments[:min(len(moments), MaxMoments)]
}

// QuotaKey names what is kept of a subject of a quota.
type QuotaKey struct {
	Tenant         int32
	State, Subject string
}

// key is that of the quota's subject.
func (m *Match) quotaKey(u *Under) QuotaKey { return QuotaKey{m.Tenant, u.State, u.Subject} }

// QuotaRow is what is kept of it.
type QuotaRow struct {
	// Moments are those that were granted, latest first.
	Moments []time.Time
	// Held is how many decisions wait to be told in a digest since Since; it is due at DigestAt.
	Held            int64
	Since, DigestAt time.Time
	// Until is from when on the row changes nothing any more.
	Until time.Time
	// Changed since it was read.
	Changed bool
}

// QuotaRows are rows of quotas. They are for one goroutine.
type QuotaRows map[QuotaKey]*QuotaRow

// Want adds empty rows for what a match is going to ask.
func (rows QuotaRows) Want(m *Match) {
	for i := range m.Under {
		if u := &m.Under[i]; u.kept() && rows[m.quotaKey(u)] == nil {
			rows[m.quotaKey(u)] = &QuotaRow{}
		}
	}
}

// Part is what a decision sends to some of its destinations at one time.
type Part struct {
	To    []string
	Delay time.Duration
}

// Grant asks the quotas about a match, remembers what they grant, and returns what is sent. A quota that is over what
// one destination gets has a say about that one alone. held: some of it is not sent, or is told in a digest.
//
// A decision counts once, to however many destinations it goes, but for those that get it at another time.
func (rows QuotaRows) Grant(m *Match, now time.Time) (sent []Part, held bool) {
	mine := map[QuotaKey]time.Time{} // granted to an earlier part
	told := map[QuotaKey]bool{}
	for _, g := range m.groups() {
		at, by := rows.slot(m, g.under, now, mine)
		if by >= 0 {
			held = true
			u := &g.under[by]
			if k := m.quotaKey(u); u.told() != nil && !told[k] {
				told[k] = true
				rows[k].fold(u, now, now.Add(m.Delay))
			}
			continue
		}
		for i := range g.under {
			u := &g.under[i]
			k := m.quotaKey(u)
			if was, ok := mine[k]; !u.Counted() || ok && was.Equal(at) {
				continue
			}
			row := rows[k]
			row.Moments = Granted(row.Moments, at)
			row.changed(u)
			mine[k] = at
		}
		i := slices.IndexFunc(sent, func(p Part) bool { return p.Delay == at.Sub(now) })
		if i < 0 {
			i, sent = len(sent), append(sent, Part{Delay: at.Sub(now)})
		}
		sent[i].To = append(sent[i].To, g.to...)
	}
	for _, p := range sent {
		slices.SortFunc(p.To, func(a, b string) int {
			return slices.Index(m.Rule.SendTo, a) - slices.Index(m.Rule.SendTo, b)
		})
	}
	return sent, held
}

// changed: the row says something for as long as a moment counts, or a digest waits.
func (row *QuotaRow) changed(u *Under) {
	row.Changed, row.Until = true, row.DigestAt
	if len(row.Moments) > 0 && row.Moments[0].Add(u.Quota.Per).After(row.Until) {
		row.Until = row.Moments[0].Add(u.Quota.Per)
	}
}

// fold counts a decision in the subject's digest. The digest takes the first place that is free under the limit, so
// that it makes no message more than the limit allows; while it waits there is one.
func (row *QuotaRow) fold(u *Under, now, due time.Time) {
	if row.Held++; row.Held == 1 {
		row.Since = now
		row.DigestAt, _ = u.room(row.Moments, now, due)
		if u.Counted() {
			row.Moments = Granted(row.Moments, row.DigestAt)
		}
	}
	row.changed(u)
}

// Told marks the digest of a row as made, and returns what it tells.
func (rows QuotaRows) Told(k QuotaKey) LimitHeld {
	row := rows[k]
	h := LimitHeld{Held: Held{Tenant: k.Tenant, State: k.State, Subject: k.Subject, Count: row.Held, Since: row.Since}}
	row.Held, row.Since, row.DigestAt = 0, time.Time{}, time.Time{}
	return h
}

// Waiting are the rows of a match's limits with a digest that waits.
func (rows QuotaRows) Waiting(m *Match) (keys []QuotaKey) {
	for i := range m.Under {
		if k := m.quotaKey(&m.Under[i]); rows[k] != nil && rows[k].Held > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// slot finds the time of one part: that of an earlier part, which costs nothing more, or one that is counted as well.
func (rows QuotaRows) slot(m *Match, under []Under, now time.Time, mine map[QuotaKey]time.Time) (time.Time, int) {
	all, others := make([][]time.Time, len(under)), make([][]time.Time, len(under))
	shared := false
	for i := range under {
		k := m.quotaKey(&under[i])
		if !under[i].Counted() {
			continue
		}
		all[i] = rows[k].Moments
		others[i] = all[i]
		if at, ok := mine[k]; ok {
			shared = true
			others[i] = without(all[i], at)
		}
	}
	due := now.Add(m.Delay)
	if shared {
		at, by := Slot(under, others, now, due)
		same := by < 0
		for i := range under {
			if was, ok := mine[m.quotaKey(&under[i])]; ok {
				same = same && was.Equal(at)
			}
		}
		if same {
			return at, by
		}
	}
	return Slot(under, all, now, due)
}

func without(moments []time.Time, at time.Time) []time.Time {
	i := slices.IndexFunc(moments, at.Equal)
	if i < 0 {
		return moments
	}
	return slices.Delete(slices.Clone(moments), i, i+1)
}

// group is destinations of a match that are under the same quotas.
type group struct {
	to    []string
	under []Under
}

// groups are those of a match: what is under the fewest quotas comes first, since what else it costs is counted then.
func (m *Match) groups() (groups []group) {
	for _, to := range m.Rule.SendTo {
		g := group{to: []string{to}}
		for _, u := range m.Under {
			if u.Quota.To == "" || u.Quota.To == to {
				g.under = append(g.under, u)
			}
		}
		same := func(o group) bool {
			return slices.EqualFunc(o.under, g.under, func(a, b Under) bool { return a.Quota == b.Quota })
		}
		if i := slices.IndexFunc(groups, same); i >= 0 {
			groups[i].to = append(groups[i].to, to)
		} else {
			groups = append(groups, g)
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int { return len(a.under) - len(b.under) })
	return groups
}
