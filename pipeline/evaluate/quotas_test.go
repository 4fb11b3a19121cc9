package evaluate

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// limited is a text of rules a, b and c, which all send to crm, and of a limit over them.
func limited(limit string) string {
	return "  - {id: a, on: x, send_to: crm}\n  - {id: b, on: x, send_to: crm, priority: 5}\n" +
		"  - {id: c, on: y, send_to: [crm, sales]}\nlimits:\n  - {id: calm, " + limit + "}\n"
}

const oneADay = "subject: event.session_id, at_most: 1, per: 1d, send_to: crm"

// TestALimitHoldsOverRules, whose messages about one subject count together; the rule with the highest priority gets
// the last place.
func TestALimitHoldsOverRules(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, mode, limited(oneADay))
			w.ingest(w.event("x", "s", 0), w.event("x", "other", 0))
			w.ingest(w.event("y", "s", 0))
			w.want(`select rule_id || ' ' || (payload ->> 'session_id') from outbox where destination = 'crm'
				order by message_id`, "t/b s", "t/b other")
			w.advance(24*time.Hour - time.Second)
			w.ingest(w.event("y", "s", 0))
			w.want(`select count(*)::text from outbox where destination = 'crm'`, "2")
			w.advance(time.Second)
			w.ingest(w.event("y", "s", 0))
			w.want(`select count(*)::text from outbox where rule_id = 't/c' and destination = 'crm'`, "1")
		})
	}
}

// TestALimitOverADestinationHoldsBackItsMessagesOnly: others of the same decision are sent as if there was no limit.
func TestALimitOverADestinationHoldsBackItsMessagesOnly(t *testing.T) {
	t.Parallel()
	both := "  - {id: a, on: x, send_to: [mail, crm], dedupe_key: event.session_id}\n"
	w := newWorld(t, both+"limits:\n"+
		"  - {id: calm, subject: event.user_id, at_most: 1, per: 1h, send_to: mail}\n")
	post := func(session string) {
		ev := w.event("x", session, 0)
		ev.UserID = "u"
		w.ingest(ev)
	}
	post("1")
	post("2")
	const messages = `select dedupe_key || ' ' || destination || ' ' || (extract(epoch from run_after -
		(select at from clock.moment)) / 60)::int from outbox order by dedupe_key, destination`
	w.want(messages, "1 crm 0", "1 mail 0", "2 crm 0")
	w.exec(`delete from outbox`)

	// What is deferred for one destination waits alone.
	w.use(both + "limits:\n" +
		"  - {id: calm, subject: event.user_id, at_most: 1, per: 1h, send_to: mail, over: defer}\n")
	post("3")
	w.want(messages, "3 crm 0", "3 mail 60")
	w.exec(`delete from outbox`)

	// Under a limit over the rule, a decision counts once, and twice where its messages are due at two times.
	w.use(both + "limits:\n" +
		"  - {id: calm, subject: event.user_id, at_most: 1, per: 3h, send_to: mail, over: defer}\n" +
		"  - {id: all, subject: event.user_id, at_most: 3, per: 1d, rules: [a]}\n")
	post("4") // mail has to wait until an hour from now, and three
	w.want(messages, "4 crm 0", "4 mail 240")
	post("5") // the third of all, whose mail would be the fourth
	w.want(messages, "4 crm 0", "4 mail 240", "5 crm 0")
	w.advance(24 * time.Hour)
	post("6")
	w.want(messages+" offset 3", "6 crm 0", "6 mail 0")
}

// TestAKeyIsFreeOnceAllItsMessagesAreSkipped, also where a limit deferred or held back some of them.
func TestAKeyIsFreeOnceAllItsMessagesAreSkipped(t *testing.T) {
	t.Parallel()
	text := strings.Replace(cart(), "send_to: crm", "send_to: [crm, mail, sms]", 1)
	w := newWorld(t, text+"limits:\n"+
		"  - {id: calm, subject: event.user_id, at_most: 1, per: 10d, send_to: mail}\n"+
		"  - {id: slow, subject: event.user_id, at_most: 1, per: 1h, send_to: sms, over: defer}\n")
	for _, session := range []string{"one", "two"} {
		ev := w.event("add_to_cart", session, 0)
		ev.UserID = "u"
		w.ingest(ev)
	}
	w.advance(time.Hour)
	w.tick()
	w.want(`select dedupe_key || ' ' || string_agg(destination, ' ' order by destination) || ' ' ||
		string_agg(distinct recheck ->> 'messages', ',') from outbox group by dedupe_key order by 1`,
		"one crm mail sms 3", "two crm sms 2")
}

// TestALimitIsExactUnderConcurrentBatches of several engines.
func TestALimitIsExactUnderConcurrentBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, limited("subject: event.session_id, at_most: 7, per: 1d, rules: [a, b, c]"))
	other := w.newEngine(limited("subject: event.session_id, at_most: 7, per: 1d, rules: [a, b, c]"))
	var wait sync.WaitGroup
	for n := range 6 {
		wait.Go(func() {
			engine := []*Engine{w.engine, other}[n%2]
			for i := range 10 {
				var batch []pipeline.Event
				for j := range 3 {
					ev := w.event([]string{"x", "y"}[(i+j)%2], fmt.Sprint((n+i+j)%3), 0)
					batch = append(batch, ev)
				}
				if err := w.store(engine, batch, func() {}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	w.want(`select (payload ->> 'session_id') || ' ' || count(distinct (event_id, rule_id)) from outbox
		group by payload ->> 'session_id' order by 1`, "0 7", "1 7", "2 7")
}

// TestALimitDefers what is over it to when it has room, and no window ever has more.
func TestALimitDefers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, limited("subject: event.session_id, at_most: 2, per: 1h, rules: [a], over: defer"))
	w.ingest(w.event("x", "s", 0), w.event("x", "s", 0), w.event("x", "s", 0))
	w.advance(30 * time.Minute)
	w.ingest(w.event("x", "s", 0), w.event("x", "s", 0))
	w.want(`select (extract(epoch from run_after - (select at from clock.moment)) / 60 + 30)::int::text from outbox
		where rule_id = 't/a' order by message_id`, "0", "0", "60", "60", "120")
	// What would have to wait behind too many is not sent.
	for range 3 {
		var batch []pipeline.Event
		for range 30 {
			batch = append(batch, w.event("x", "flood", 0))
		}
		w.ingest(batch...)
	}
	w.want(`select count(*)::text from outbox where rule_id = 't/a' and payload ->> 'session_id' = 'flood'`, "52")
}

// TestQuietHours: nothing is due in them, and a delayed absence message counts when it is due.
func TestQuietHours(t *testing.T) {
	t.Parallel()
	hours := "hours: {from: '21:00', to: '08:00', timezone: Europe/Berlin}"
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{"20:59": "0 20:59", "21:00": "1 08:00", "03:00": "0 08:00",
		"08:00": "0 08:00"} {
		w := newWorld(t, limited("rules: [a], over: defer, "+hours))
		day := w.now.In(berlin).Format(time.DateOnly)
		now, err := time.ParseInLocation("2006-01-02 15:04", day+" "+at, berlin)
		if err != nil {
			t.Fatal(err)
		}
		w.set(now)
		w.ingest(w.event("x", "s", 0))
		w.want(`select (run_after at time zone 'Europe/Berlin')::date - (clock.now() at time zone 'Europe/Berlin')::date
			|| to_char(run_after at time zone 'Europe/Berlin', ' HH24:MI') from outbox where rule_id = 't/a'`, want)
	}
	w := newWorld(t, cart()+"limits: [{id: calm, send_to: crm, over: suppress, "+hours+"}]\n")
	evening, err := time.ParseInLocation("2006-01-02 15:04", w.now.In(berlin).Format(time.DateOnly)+" 19:57", berlin)
	if err != nil {
		t.Fatal(err)
	}
	w.set(evening)
	w.tick()
	w.ingest(w.event("add_to_cart", "due at two past nine", 0))
	w.advance(time.Hour)
	w.tick()
	w.want(`select 'none' from outbox`)
}

// TestQuietHoursOfTheEvent are those where the customer lives.
func TestQuietHoursOfTheEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, limited("rules: [a], over: defer, "+
		"hours: {from: '21:00', to: '08:00', timezone: 'coalesce(event.properties.tz, \"Europe/Berlin\")'}"))
	w.set(w.now.Truncate(24 * time.Hour).Add(22*time.Hour + 30*time.Minute)) // UTC
	for _, tz := range []string{`"Asia/Tokyo"`, `"America/New_York"`, `"nowhere"`, `null`} {
		ev := w.event("x", "s", 0)
		ev.Properties = []byte(`{"tz":` + tz + `}`)
		w.ingest(ev)
	}
	w.want(`select coalesce(payload -> 'properties' ->> 'tz', 'none') || ' '
			|| case when run_after = clock.now() then 'at once' else to_char(run_after at time zone z, 'HH24:MI') end
		from outbox, unnest(array['Asia/Tokyo', 'America/New_York', 'UTC', 'Europe/Berlin']) with ordinality as u(z, n)
		where rule_id = 't/a' and n = (select count(*) from outbox o where o.rule_id = 't/a'
			and o.message_id <= outbox.message_id) order by message_id`,
		"Asia/Tokyo 08:00", "America/New_York at once", "nowhere 08:00", "none 08:00")
}

// TestALimitFoldsWhatIsOverIt into one message about a subject, at the next place that the limit has: once, however
// many sweep, and no window has more than its limit with it.
func TestALimitFoldsWhatIsOverIt(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			text := limited("subject: event.session_id, at_most: 1, per: 1h, send_to: crm, over: digest, " +
				"digest: {payload: {n: digest.count, who: digest.subject}}")
			w := newWorldIn(t, mode, text)
			start := w.now
			messages := func(want ...string) {
				t.Helper()
				w.want(`select rule_id || ' ' || subject_key || ' ' || coalesce(payload ->> 'n', '-') || ' ' ||
					(extract(epoch from run_after - '`+start.Format(time.RFC3339Nano)+`') / 60)::int
					from outbox where destination = 'crm' order by message_id`, want...)
			}
			w.ingest(w.event("x", "s", 0), w.event("x", "s", 0)) // of four decisions, one has room
			w.ingest(w.event("x", "other", 0))
			w.advance(30 * time.Minute)
			w.ingest(w.event("y", "s", 0)) // which goes to sales all the same
			w.tick()
			messages("t/b  - 0", "t/b  - 0")
			w.want(`select payload ->> 'session_id' from outbox where destination = 'sales'`, "s")
			w.advance(31 * time.Minute)
			other := NewSweeper(w.newEngine(text), w.db, NewSweepMetrics(prometheus.NewRegistry()))
			var wait sync.WaitGroup
			for range 3 {
				wait.Go(func() {
					if err := other.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
			w.want(`select payload ->> 'who' || ' ' || (payload ->> 'n') || ' ' || type from outbox
				where rule_id = 't/calm' order by 1`, "other 1 calm", "s 4 calm")
			w.want(`select distinct (extract(epoch from run_after - '`+start.Format(time.RFC3339Nano)+`') / 60)::int::text
				from outbox where rule_id = 't/calm'`, "60")
			w.exec(`delete from outbox`)

			w.ingest(w.event("y", "s", 0)) // the digest took the place
			messages()
			w.advance(time.Hour)
			w.tick()
			messages("t/calm s 1 120")
			w.advance(time.Hour)
			w.tick()
			w.ingest(w.event("y", "s", 0))
			messages("t/calm s 1 120", "t/c  - 181")
		})
	}
}

// TestWhatIsFoldedOverNight is one message in the morning; what a shadow holds back is told to nobody.
func TestWhatIsFoldedOverNight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  - {id: a, on: x, send_to: crm}\n  - {id: b, on: y, send_to: crm, state: shadow}\nlimits:\n"+
		"  - {id: night, subject: event.session_id, send_to: crm, over: digest, hours: {from: '21:00', to: '08:00'}}\n")
	w.set(w.now.Truncate(24 * time.Hour).Add(22 * time.Hour))
	w.ingest(w.event("x", "s", 0), w.event("y", "s", 0))
	w.advance(time.Hour)
	w.ingest(w.event("x", "s", 0))
	w.tick()
	w.want(`select rule_id from outbox`)
	w.advance(9*time.Hour + time.Minute)
	w.tick()
	w.want(`select rule_id || ' ' || status || ' ' || (payload ->> 'count') || to_char(run_after at time zone 'UTC',
		' HH24:MI') from outbox order by status`, "t/night pending 2 08:00", "t/night skipped 1 08:00")
}

// TestLimitsAreForgottenInTime, and not before an edit could look back at them.
func TestLimitsAreForgottenInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, limited(oneADay))
	w.ingest(w.event("x", "s", 0))
	prune := func(want int64) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
			gone, _, err := NewPruner(DefaultConfig()).Prune(t.Context(), tx, "limit_subjects", 10)
			if gone != want {
				t.Errorf("%d rows are pruned, want %d", gone, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.advance(2 * day)
	prune(0)
	w.advance(7 * day)
	prune(1)
}
