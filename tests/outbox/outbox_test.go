package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/outbox"
	"sluice.example/sluice/pipeline/schema"
)

// shop returns a database whose configuration has two destinations and two topics, and a table of orders.
func shop(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	err := outbox.SyncTopics(t.Context(), pool, []string{"billing", "crm"},
		map[string][]string{"orders": {"crm", "billing"}, "leads": {"crm"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.SyncTenants(t.Context(), pool, map[string]int32{"default": 1, "acme": 7}); err != nil {
		t.Fatal(err)
	}
	run(t, pool, `create table orders (id text primary key)`)
	return pool
}

func run(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one checks a query's only value, as text.
func one(t *testing.T, pool *pgxpool.Pool, want, query string, args ...any) {
	t.Helper()
	var got string
	if err := pool.QueryRow(t.Context(), `select coalesce((`+query+`)::text, 'null')`, args...).Scan(&got); err != nil ||
		got != want {
		t.Fatalf("%s %v = %q, %v; want %q", query, args, got, err, want)
	}
}

// enqueued does it in a transaction of its own.
func enqueued(ctx context.Context, pool *pgxpool.Pool, messages ...outbox.Message) ([]outbox.Receipt, error) {
	var receipts []outbox.Receipt
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var err error
		receipts, err = outbox.Enqueue(ctx, tx, messages...)
		return err
	})
	return receipts, err
}

func placed(key string) outbox.Message {
	return outbox.Message{EventType: "order.placed", Payload: json.RawMessage(`{"a":1}`), Destination: "billing",
		IdempotencyKey: key}
}

func duplicates(receipts []outbox.Receipt) (n int) {
	for _, r := range receipts {
		if r.Duplicate {
			n++
		}
	}
	return n
}

func TestEnqueueStoresAllOfAMessage(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	at := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.FixedZone("", 2*3600))
	receipts, err := enqueued(ctx, pool,
		outbox.Message{Tenant: "acme", AggregateType: "order", AggregateID: "17:x", EventType: "order.placed",
			Payload: json.RawMessage(`{"text":"<ü>","n":9007199254740993}`),
			Headers: map[string]string{"X-Source": "shop"}, IdempotencyKey: "placed-17", Topic: "orders", RunAfter: at},
		outbox.Message{EventType: "lead", Payload: json.RawMessage(`null`), Destination: "crm"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(receipts) != 2 || len(receipts[0].Deliveries) != 2 || len(receipts[1].Deliveries) != 1 ||
		duplicates(receipts) != 0 {
		t.Fatalf("receipts = %+v; want two deliveries, then one", receipts)
	}
	if d := receipts[0].Deliveries; d[0].Destination != "billing" || d[1].Destination != "crm" ||
		d[0].IdempotencyKey == d[1].IdempotencyKey || d[0].MessageID == d[1].MessageID {
		t.Errorf("deliveries = %+v; want billing and crm, each with its own keys", d)
	}
	for _, d := range receipts[0].Deliveries {
		one(t, pool, "(7,order.placed,order:17:x,placed-17,"+d.IdempotencyKey+","+d.Destination+
			`,"{""n"": 9007199254740993, ""text"": ""<ü>""}","{""X-Source"": ""shop""}",`+
			`pending,0,"2030-01-02 01:04:05.678901")`,
			`select row(tenant_id, type, subject_key, dedupe_key, idempotency_key, destination, payload, headers, status,
			attempts, run_after at time zone 'UTC') from outbox where message_id = $1`, d.MessageID)
	}
	d := receipts[1].Deliveries[0]
	one(t, pool, `(1,lead,"",crm,null,,t,t)`,
		`select row(tenant_id, type, subject_key, destination, payload, headers, run_after = created_at, rule_id is null
			and event_id is null) from outbox where message_id = $1`, d.MessageID)
	one(t, pool, "1", `select count(*) from dedupe_keys where expires_at is null and key_hash =
		substr(encode(sha256('app:placed-17'), 'hex'), 1, 32)::uuid and tenant_id = 7`)
	one(t, pool, "1", `select count(*) from dedupe_keys`) // none for the message without a key
}

func TestEnqueueRepeatedKeys(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	check := func(want int, messages ...outbox.Message) {
		t.Helper()
		receipts, err := enqueued(ctx, pool, messages...)
		if err != nil || duplicates(receipts) != want || len(receipts) != len(messages) {
			t.Fatalf("receipts = %+v, %v; want %d duplicates", receipts, err, want)
		}
	}
	check(1, placed("a"), placed("b"), placed("a"))
	check(2, placed("a"), placed("c"), placed("b"))
	other := placed("a")
	other.Destination, other.EventType = "crm", "other"
	check(1, other) // one key, one message, whatever is in it
	other.Tenant = "acme"
	check(0, other) // each tenant has its own keys
	check(0, placed(""), placed(""))

	// In one transaction too, and harmless to it.
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for i := range 2 {
			receipts, err := outbox.Enqueue(ctx, tx, placed("d"))
			if err != nil || duplicates(receipts) != i {
				return fmt.Errorf("call %d: %+v, %v", i, receipts, err)
			}
		}
		_, err := tx.Exec(ctx, `insert into orders values ('17')`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	one(t, pool, "a b c d", `select string_agg(dedupe_key, ' ' order by dedupe_key) from outbox where tenant_id = 1
		and length(dedupe_key) = 1`)
}

// TestEnqueueUnderRepeatableRead: a key that was committed after the transaction's snapshot is a serialization failure,
// and the transaction that is repeated finds the duplicate.
func TestEnqueueUnderRepeatableRead(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		key := "placed-" + string(level)
		tries, receipts := 0, []outbox.Receipt(nil)
		for {
			tries++
			err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) (err error) {
				if _, err := tx.Exec(ctx, `select count(*) from outbox`); err != nil { // takes the snapshot
					return err
				}
				if tries == 1 {
					if _, err := enqueued(ctx, pool, placed(key)); err != nil {
						t.Fatal(err)
					}
				}
				receipts, err = outbox.Enqueue(ctx, tx, placed(key))
				return err
			})
			if err == nil {
				break
			}
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "40001" || tries > 1 {
				t.Fatalf("%s, try %d: %v; want 40001 once", level, tries, err)
			}
		}
		if tries != 2 || duplicates(receipts) != 1 {
			t.Errorf("%s: %d tries, %+v; want a duplicate at the second", level, tries, receipts)
		}
	}
}

func TestEnqueueKeyCanBeUsedAgainAfterItsTime(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	m := placed("a")
	m.DedupeUntil = time.Now().Add(time.Hour)
	for _, c := range []struct {
		expires string
		want    int
	}{{"as it is", 0}, {"as it is", 1}, {"now", 0}, {"as it is", 1}} {
		if c.expires == "now" {
			run(t, pool, `update dedupe_keys set expires_at = now()`)
		}
		if receipts, err := enqueued(ctx, pool, m); err != nil || duplicates(receipts) != c.want {
			t.Fatalf("ends %s: %+v, %v; want %d duplicates", c.expires, receipts, err, c.want)
		}
	}
	one(t, pool, "1", `select count(*) from dedupe_keys where expires_at > now() + interval '59 minutes'`)
	one(t, pool, "2", `select count(*) from outbox`)
}

func TestEnqueueNamesWhatIsWrong(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	long := strings.Repeat("x", 1001)
	for _, c := range []struct {
		change func(*outbox.Message)
		want   string
	}{
		{func(m *outbox.Message) { m.Destination = "Billing" }, `destination "Billing" is not configured`},
		{func(m *outbox.Message) { m.Destination, m.Topic = "", "order" }, `topic "order" is not configured`},
		{func(m *outbox.Message) { m.Topic = "orders" }, "exactly one of destination and topic"},
		{func(m *outbox.Message) { m.Destination = "" }, "exactly one of destination and topic"},
		{func(m *outbox.Message) { m.EventType = "" }, "event_type is missing"},
		{func(m *outbox.Message) { m.EventType = long }, "event_type is longer"},
		{func(m *outbox.Message) { m.Payload = nil }, "payload is missing"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`{"a":`) }, "unexpected end of JSON"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`) },
			"payload is longer than 1 MiB"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`"\u0000"`) }, "cannot store"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`{"a\\\u0000":1}`) }, "cannot store"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`"\ud83d x"`) }, "cannot store"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage(`"\ude00\ud83d"`) }, "cannot store"},
		{func(m *outbox.Message) { m.Payload = json.RawMessage("\"\xff\"") }, "is not UTF-8"},
		{func(m *outbox.Message) { m.AggregateID = "17" }, "aggregate_type and aggregate_id go together"},
		{func(m *outbox.Message) { m.AggregateType, m.AggregateID = "a:b", "17" }, "aggregate_type holds a colon"},
		{func(m *outbox.Message) { m.AggregateType, m.AggregateID = "a", long }, "longer than 1000"},
		{func(m *outbox.Message) { m.AggregateType, m.AggregateID = "a", "\xff" }, "is not UTF-8"},
		{func(m *outbox.Message) { m.IdempotencyKey = long }, "idempotency_key is longer"},
		{func(m *outbox.Message) { m.IdempotencyKey = "a\x00b" }, "cannot store"},
		{func(m *outbox.Message) { m.IdempotencyKey = "\xff" }, "is not UTF-8"},
		{func(m *outbox.Message) { m.Headers = map[string]string{"X-A": "b\r\nX-C: d"} }, "headers has a name or a value"},
		{func(m *outbox.Message) { m.Headers = map[string]string{"X-A": "\xff"} }, "is not UTF-8"},
		{func(m *outbox.Message) { m.Headers = map[string]string{"X A": "b"} }, "headers has a name or a value"},
		{func(m *outbox.Message) { m.Tenant = "globex" }, `tenant "globex" is not configured`},
		{func(m *outbox.Message) { m.TenantRef = long }, "tenant_ref is longer than 200"},
	} {
		bad := placed("")
		c.change(&bad)
		_, err := enqueued(ctx, pool, placed(""), bad, placed(""))
		if err == nil || !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error = %v; want ErrInvalid with %q", err, c.want)
		} else if !strings.Contains(err.Error(), "message 1: ") {
			t.Errorf("error %q does not say which message", err)
		}
	}
	// What Go cannot send.
	for _, c := range []struct{ in, want string }{
		{`5`, "neither a JSON object nor an array"},
		{`null`, "neither a JSON object nor an array"},
		{`[5]`, "message 0: is no JSON object"},
		{`[{}]`, "message 0: event_type is missing"},
		{`{"event_type":5}`, "message 0: event_type is missing"},
		{`{"event_type":"a","payload":1,"destination":"crm","run_at":1,"to":2}`, `"to", "run_at" is not known`},
		{`{"event_type":"a","payload":1,"destination":"crm","run_after":"2030-01-01 00:00"}`,
			"run_after is no ISO 8601 time with an offset"},
		{`{"event_type":"a","payload":1,"destination":"crm","dedupe_until":"tomorrow"}`,
			"dedupe_until is no ISO 8601 time"},
		{`{"event_type":"a","payload":1,"destination":"crm","headers":[]}`, "headers is no JSON object"},
		{`{"event_type":"a","payload":1,"destination":"crm","headers":{"a":1}}`, "headers has a name or a value"},
		{`{"event_type":"a","payload":1,"destination":"crm","tenant":1.5}`, `tenant "1.5" is not configured`},
		{`{"event_type":"a","payload":1,"destination":"crm","tenant":99}`, `tenant "99" is not configured`},
		{`{"event_type":"a","payload":1,"destination":"crm","tenant":["acme"]}`, "tenant is no name"},
		{`{"event_type":"a","payload":1,"destination":"crm","tenant_ref":5}`, "tenant_ref is no text"},
		{`{"event_type":"a","payload":1,"destination":"crm","idempotency_key":""}`, "idempotency_key is empty"},
		{`[{},{"event_type":"a","payload":1,"topic":"x"}]`,
			`message 0: event_type is missing; message 1: topic "x" is not configured`},
	} {
		if _, err := pool.Exec(ctx, `select sluice_enqueue($1::jsonb)`, c.in); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("sluice_enqueue(%s): error = %v; want one with %q", c.in, err, c.want)
		}
	}
	one(t, pool, "0", `select (select count(*) from outbox) + (select count(*) from dedupe_keys)`)
	if receipts, err := enqueued(ctx, pool); len(receipts) != 0 || err != nil {
		t.Errorf("no messages: %v, %v; want nothing", receipts, err)
	}
}

// TestEnqueueManyMessages: one statement stores 10,000, less a key that is in it twice and one that was there before.
func TestEnqueueManyMessages(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	if _, err := enqueued(ctx, pool, placed("k4000")); err != nil {
		t.Fatal(err)
	}
	var messages []outbox.Message
	for i := range 10000 {
		messages = append(messages, placed(fmt.Sprint("k", i)))
	}
	messages[9000] = placed("k20")
	receipts, err := enqueued(ctx, pool, messages...)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for i, r := range receipts {
		if r.Duplicate {
			got = append(got, i)
		} else if len(r.Deliveries) != 1 || i > 0 && !receipts[i-1].Duplicate &&
			r.Deliveries[0].MessageID <= receipts[i-1].Deliveries[0].MessageID {
			t.Fatalf("receipt %d = %+v; want one delivery, in the order of the messages", i, r)
		}
	}
	if !slices.Equal(got, []int{4000, 9000}) {
		t.Fatalf("duplicates at %v; want 4000 and 9000", got)
	}
	one(t, pool, "9999", `select count(*) from outbox`) // 9,998 and the one from before
}

// TestEnqueueInEveryMode sends the same call by every protocol that pgx has, and by database/sql.
func TestEnqueueInEveryMode(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	message := func(key string) outbox.Message {
		m := placed(key)
		m.Payload = json.RawMessage(`{"quote":"it's \\ \"ü\"","fine":"\\u0000 \ud83d\ude00"}`)
		m.Headers = map[string]string{"X-A": "b"}
		return m
	}
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		cfg, err := pgx.ParseConfig(pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		separator := "?"
		if strings.Contains(cfg.ConnString(), "?") {
			separator = "&"
		}
		withMode, err := pgx.ParseConfig(cfg.ConnString() + separator + "default_query_exec_mode=" + mode)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(ctx, withMode)
		if err != nil {
			t.Fatal(err)
		}
		for want := range 2 {
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				receipts, err := outbox.Enqueue(ctx, tx, message(mode))
				if err != nil || duplicates(receipts) != want || want == 0 && receipts[0].Deliveries[0].MessageID == 0 {
					t.Errorf("%s: %+v, %v; want %d duplicates", mode, receipts, err, want)
				}
				return err
			})
			if err != nil {
				t.Error(mode, err)
			}
		}
		conn.Close(ctx)
	}

	db, err := sql.Open("pgx", pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for want := range 2 {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		receipts, err := outbox.EnqueueSQL(ctx, tx, message("database/sql"))
		if err != nil || duplicates(receipts) != want || len(receipts) != 1 {
			t.Fatalf("EnqueueSQL = %+v, %v; want %d duplicates", receipts, err, want)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if receipts, err := outbox.EnqueueSQL(ctx, tx, placed("gone")); err != nil || duplicates(receipts) != 0 {
		t.Fatalf("EnqueueSQL = %+v, %v", receipts, err)
	}
	if _, err := outbox.EnqueueSQL(ctx, tx, outbox.Message{}); !errors.Is(err, outbox.ErrInvalid) {
		t.Fatalf("EnqueueSQL of an empty message = %v; want ErrInvalid", err)
	}
	tx.Rollback()
	one(t, pool, `6 it's \ "ü"`, `select count(*) || ' ' || min(payload ->> 'quote') from outbox`)
}

// TestEnqueueFromATrigger: a table's own trigger makes the promise, whatever the writer's search_path.
func TestEnqueueFromATrigger(t *testing.T) {
	pool := shop(t)
	run(t, pool, `
create function order_placed() returns trigger language plpgsql as $$
begin
    perform public.sluice_enqueue(jsonb_build_object(
        'topic', 'orders', 'event_type', 'order.placed', 'aggregate_type', 'order', 'aggregate_id', new.id,
        'idempotency_key', 'order.placed:' || new.id, 'payload', to_jsonb(new),
        'run_after', now() + interval '1 hour'));
    return new;
end $$;
create trigger order_placed after insert on orders for each row execute function order_placed();`)
	run(t, pool, `begin; set local search_path = pg_catalog; insert into public.orders values ('17'), ('18'); commit`)
	one(t, pool, `order:17 billing {"id": "17"}, order:17 crm {"id": "17"}, `+
		`order:18 billing {"id": "18"}, order:18 crm {"id": "18"}`,
		`select string_agg(format('%s %s %s', subject_key, destination, payload), ', ' order by message_id)
		 from outbox where run_after = created_at + interval '1 hour'`)
	run(t, pool, `delete from orders`)
	run(t, pool, `insert into orders values ('17')`)
	one(t, pool, "4", `select count(*) from outbox`)
}

// TestSchemaOfItsOwn: the pipeline's tables are in a schema that callers do not have on their path.
func TestSchemaOfItsOwn(t *testing.T) {
	pool, ctx := pgtest.New(t), t.Context()
	run(t, pool, `create schema sluice`)
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["search_path"] = "sluice"
	inside, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	err = inside.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := schema.Migrate(ctx, c.Conn(), slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.SyncTopics(ctx, inside, []string{"billing"}, nil); err != nil {
		t.Fatal(err)
	}
	run(t, pool, `select sluice.sluice_enqueue(
		'{"event_type":"a","payload":1,"destination":"billing","idempotency_key":"a"}')`)
	one(t, pool, "(0,1,1)", `select row((select count(*) from public.outbox), (select count(*) from sluice.outbox),
		(select count(*) from sluice.dedupe_keys))`)
}

// Enqueue names the message that jsonb would not take, and takes what jsonb takes.
func TestEnqueueRejectsWhatPostgreSQLCannotStore(t *testing.T) {
	pool := shop(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	storable := func(text string) error {
		return unlessAsked(pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `select $1::jsonb`, text); err != nil {
				return err
			}
			return errRollback
		}))
	}
	enqueued := func(text string) error {
		return unlessAsked(pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			message := placed("")
			message.Payload = json.RawMessage(text)
			if _, err := outbox.Enqueue(t.Context(), tx, message); err != nil {
				return err
			}
			return errRollback
		}))
	}
	pieces := []string{
		`a`, `\\`, `\"`, `\n`, `u0000`, `\u0000`, `\u0041`, `\ud83d`, `\ude00`, `\uD83D\uDE00`, `\uffff`, `ü`,
	}
	rejected := 0
	for range 2000 {
		text := `"`
		for range rand.IntN(6) {
			text += pieces[rand.IntN(len(pieces))]
		}
		text += `"`
		want, got := storable(text), enqueued(text)
		if (want == nil) != (got == nil) || got != nil && !strings.Contains(got.Error(), "message 0: holds a NUL or half") {
			t.Fatalf("Enqueue of %s: error = %v; PostgreSQL says %v", text, got, want)
		}
		if want != nil {
			rejected++
		}
	}
	if rejected < 100 || rejected > 1900 {
		t.Errorf("%d of 2000 texts were rejected: too few of one kind to compare", rejected)
	}
}

var errRollback = errors.New("roll back")

// unlessAsked is what went wrong beside a rollback that was asked for.
func unlessAsked(err error) error {
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

func TestSyncTopics(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	const state = `select concat((select string_agg(destination, ' ' order by destination)
		from outbox_destinations), ' | ',
		(select string_agg(topic || '>' || destination, ' ' order by topic, destination) from outbox_topics))`
	one(t, pool, "billing crm | leads>crm orders>billing orders>crm", state)
	sync := func(want string, destinations []string, topics map[string][]string) {
		t.Helper()
		if err := outbox.SyncTopics(ctx, pool, destinations, topics); err != nil {
			t.Fatal(err)
		}
		one(t, pool, want, state)
	}
	sync("audit crm | orders>audit orders>crm", []string{"crm", "audit"},
		map[string][]string{"orders": {"crm", "audit", "crm"}})
	run(t, pool, `create function written() returns trigger language plpgsql as $$ begin raise exception 'written'; end $$;
		create trigger written after insert or update or delete on outbox_topics for each row execute function written()`)
	sync("audit crm | orders>audit orders>crm", []string{"crm", "audit"},
		map[string][]string{"orders": {"crm", "audit"}}) // writes nothing
	run(t, pool, `drop trigger written on outbox_topics`)

	err := outbox.SyncTopics(ctx, pool, []string{"crm", ""}, map[string][]string{"a": nil, "b": {"crm", "x"}, "": {"crm"}})
	for _, want := range []string{"topics.a: has no destinations", `topics.b: destination "x" is not configured`,
		"topics: a name is empty", "destinations: a name is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v; want one with %q", err, want)
		}
	}
	sync(" | ", nil, nil)
}

// TestPayloadWithALongNumber: nine bytes of JSON may be 131,072 digits for whoever claims the message.
func TestPayloadWithALongNumber(t *testing.T) {
	pool, ctx := shop(t), t.Context()
	for number, taken := range map[string]bool{
		"1e131071": false, "-1e131071": false, "1e-16383": false, "1e400": false, "1e-400": false, "0e-400": false,
		strings.Repeat("9", 401): false, "12." + strings.Repeat("3", 399): false,
		"1e399": true, "-1e399": true, "1e-399": true, "1.7976931348623157e308": true, strings.Repeat("9", 400): true,
		"1." + strings.Repeat("3", 399): true, "0": true,
	} {
		for _, payload := range []string{number, `{"n":` + number + `}`, `[[1,{"l":["x",` + number + `]}]]`} {
			m := placed("")
			m.Payload = json.RawMessage(payload)
			_, err := enqueued(ctx, pool, m)
			if taken && err != nil || !taken && (err == nil || !strings.Contains(err.Error(), "400 digits")) {
				t.Errorf("payload %.40s: %v; want taken: %v", payload, err, taken)
			}
		}
	}
	m := placed("")
	m.Payload = json.RawMessage("[" + strings.Repeat("1e131071,", 8200) + "1]")
	if _, err := enqueued(ctx, pool, m); err == nil || !strings.Contains(err.Error(), "400 digits") {
		t.Errorf("8,200 numbers of 131,072 digits: %v; want the number of digits", err)
	}
}
