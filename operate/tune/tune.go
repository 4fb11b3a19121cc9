// Package tune changes settings while processes run, for all nodes or one: a row in setting_overrides, which each node
// reads every two seconds, applies or refuses, and says so in its row of the table of nodes. A change ends by itself
// unless it is kept. What can be changed is the list of settings that nodes hand to Follow; no other key is taken.
package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/nodes"
)

// The keys that can be changed. Those of destinations have the name of one for the star.
const (
	MaxEvents  = "buffer.max-events"
	MaxWait    = "buffer.max-wait"
	ClaimBatch = "deliver.claim-batch"
	// Paused is true or false. Probe is any text: each new one tries a destination whose circuit breaker is open.
	Paused = "destination.*.paused"
	Probe  = "destination.*.probe"
)

// Keys are all of them, with what values they take.
var Keys = []struct{ Key, Values string }{
	{MaxEvents, "a whole number from 1 to 1000000"}, {MaxWait, "a time such as 5ms, or auto"},
	{ClaimBatch, "a whole number from 1 to 100000"}, {Paused, "true or false"}, {Probe, "any text"},
}

// Of returns the key for one destination.
func Of(key, destination string) string { return strings.Replace(key, "*", destination, 1) }

// Destination returns the destination of a key, and the key with the star for it.
func Destination(key string) (name, pattern string, ok bool) {
	rest, ok := strings.CutPrefix(key, "destination.")
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 1 {
		return "", key, false
	}
	return rest[:dot], "destination.*" + rest[dot:], true
}

// Check reports what is wrong with a key or a value, before any node is asked.
func Check(key, value string) error {
	_, pattern, _ := Destination(key)
	names := make([]string, len(Keys))
	for i, k := range Keys {
		names[i] = k.Key
	}
	var err error
	switch pattern {
	case MaxEvents:
		err = whole(value, 1_000_000)
	case ClaimBatch:
		err = whole(value, 100_000)
	case MaxWait:
		_, err = Wait(value, 0)
	case Paused:
		_, err = strconv.ParseBool(value)
	case Probe:
	default:
		return fmt.Errorf("%s can't be changed while processes run%s; set it in the file, and restart. These can: %s", key,
			spell.DidYouMean(pattern, names), strings.Join(names, ", "))
	}
	if err != nil {
		for _, k := range Keys {
			if k.Key == pattern {
				return fmt.Errorf("%s: %q; set %s", key, value, k.Values)
			}
		}
	}
	return nil
}

func whole(value string, most int) error {
	n, err := strconv.Atoi(value)
	if err == nil && (n < 1 || n > most) {
		err = errors.New("out of range")
	}
	return err
}

// Wait reads a value of MaxWait; auto is what it returns for auto.
func Wait(value string, auto time.Duration) (time.Duration, error) {
	if value == "auto" {
		return auto, nil
	}
	d, err := duration.Parse(value)
	if err == nil && d < 0 {
		err = errors.New("negative")
	}
	return d, err
}

// Override is a change.
type Override struct {
	// Scope is empty for all nodes, else the name of one.
	Scope string     `db:"scope" json:"scope"`
	Key   string     `db:"key" json:"key"`
	Value string     `db:"value" json:"value"`
	By    string     `db:"set_by" json:"by"`
	At    time.Time  `db:"set_at" json:"at"`
	Why   string     `db:"why" json:"why"`
	Until *time.Time `db:"until" json:"until,omitempty"`
	// Revision is greater for each change.
	Revision int64 `db:"revision" json:"revision"`
}

// DB is a connection, a pool or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// inForceSQL leaves out what has ended.
const inForceSQL = `
select scope, key, value, set_by, set_at, why, until, revision
from setting_overrides
where until is null or until > now()
order by key, scope`

// List returns the changes that are in force.
func List(ctx context.Context, db DB) ([]Override, error) {
	rows, err := db.Query(ctx, inForceSQL)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	all, err := pgx.AppendRows([]Override{}, rows, pgx.RowToStructByName[Override])
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	return all, nil
}

const (
	lockSQL = `select pg_advisory_xact_lock(hashtextextended('sluice:setting_overrides', 0))`
	setSQL  = `
insert into setting_overrides as o (scope, key, value, set_by, why, until, revision)
values ($1, $2, $3, $4, $5, now() + $6::float8 * interval '1 second', nextval('setting_revision'))
on conflict (scope, key) do update set value = excluded.value, set_by = excluded.set_by, set_at = now(),
    why = excluded.why, until = excluded.until, revision = excluded.revision
returning revision`
	unsetSQL  = `delete from setting_overrides where scope = $1 and key = $2`
	forgetSQL = `delete from setting_overrides where until < now() - interval '1 day'`
)

// Set changes a setting on all nodes, or on the one of that name, for so long; 0 is until it is unset. The reason is
// that of by, which has to have one.
func Set(ctx context.Context, db pgtx.Beginner, scope, key, value string, within time.Duration, by audit.Actor) (
	revision int64, err error) {
	if err := Check(key, value); err != nil {
		return 0, err
	}
	if by.Why == "" {
		return 0, errors.New("say why: whoever is paged at night will want to know")
	}
	var seconds *float64
	if within > 0 {
		s := within.Seconds()
		seconds = &s
	}
	err = change(ctx, db, "set "+key, scope, key, by, func(tx pgx.Tx) error {
		if err := known(ctx, tx, key); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, forgetSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, setSQL, pgx.QueryExecModeCacheDescribe, scope, key, value, by.Name, by.Why, seconds).
			Scan(&revision)
	})
	return revision, err
}

// ErrNoDestination means that no process has configured a destination.
var ErrNoDestination = errors.New("there is no destination")

const destinationsSQL = `select destination from outbox_destinations order by destination`

// known reports a destination that no process has configured.
func known(ctx context.Context, tx pgx.Tx, key string) error {
	name, _, ok := Destination(key)
	if !ok {
		return nil
	}
	rows, err := tx.Query(ctx, destinationsSQL)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && !slices.Contains(names, name) {
		err = fmt.Errorf("%w %q%s", ErrNoDestination, name, spell.DidYouMean(name, names))
	}
	return err
}

// ErrNotSet means that a setting was not changed there.
var ErrNotSet = errors.New("it was not changed")

// Unset leaves a setting to each node's configuration again.
func Unset(ctx context.Context, db pgtx.Beginner, scope, key string, by audit.Actor) error {
	return change(ctx, db, "unset "+key, scope, key, by, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, unsetSQL, pgx.QueryExecModeCacheDescribe, scope, key)
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrNotSet
		}
		return err
	})
}

// bounds: one row, and somebody waits.
var bounds = pgtx.Bounds{Idle: pgtx.Idle, Statement: 2 * time.Second}

// change makes a change with its row in the audit. Changes wait for each other, so that revisions commit in their
// order.
func change(ctx context.Context, db pgtx.Beginner, action, scope, key string, by audit.Actor,
	f func(pgx.Tx) error) error {
	find := func(tx pgx.Tx) (any, error) {
		all, err := List(ctx, tx)
		for _, o := range all {
			if o.Scope == scope && o.Key == key {
				return o, err
			}
		}
		return nil, err
	}
	err := pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return err
		}
		before, err := find(tx)
		if err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return err
		}
		after, err := find(tx)
		if err != nil {
			return err
		}
		target := "all nodes"
		if scope != "" {
			target = "node " + scope
		}
		return audit.Write(ctx, tx, by, action, target, before, after)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// Apply puts a value into force, or leaves what was in force and says why. The empty value is the configuration's.
type Apply func(value string) error

// Live are the settings of a node that can change, by key.
type Live map[string]Apply

// followEvery is how often a node looks for changes.
const followEvery = 2 * time.Second

// Applied is what a node made of a change.
type Applied struct {
	Value string `json:"value"`
	// Refused is why another value is in force; empty where this one is.
	Refused string `json:"refused,omitempty"`
}

// Follower puts changes for one node into force. A change for the node comes before one for all.
type Follower struct {
	pool *pgxpool.Pool
	node string
	live Live
	told *nodes.Self
	log  *slog.Logger

	last     []Override
	inForce  map[string]Applied
	revision int64
	failing  bool
}

// NewFollower makes one for the node of a name, which tells others by told what it made of changes.
func NewFollower(pool *pgxpool.Pool, node string, live Live, told *nodes.Self, log *slog.Logger) *Follower {
	return &Follower{pool: pool, node: node, live: live, told: told, log: log, inForce: map[string]Applied{}}
}

// Look puts into force what has changed. A node does so once before it runs, so that what is paused stays paused.
func (f *Follower) Look(ctx context.Context) error {
	all, err := List(ctx, f.pool)
	if err == nil {
		f.last = all
	}
	if f.apply(time.Now()) {
		text, marshalErr := json.Marshal(f.inForce)
		if marshalErr == nil {
			f.told.Tuned(f.revision, text)
		}
		err = errors.Join(err, marshalErr)
	}
	return err
}

// Run looks every two seconds until ctx ends, and returns nil. While the database is away what is in force stays, and
// ends in time.
func (f *Follower) Run(ctx context.Context) error {
	for wait.For(ctx, followEvery) {
		err := f.Look(ctx)
		if err != nil && !f.failing && ctx.Err() == nil {
			f.log.Warn("tune: changes of settings can't be read; it is tried again", "error", err)
		}
		f.failing = err != nil
	}
	return nil
}

// apply brings into force what has changed, and reports whether anything has.
func (f *Follower) apply(now time.Time) (changed bool) {
	want := map[string]string{}
	for _, o := range f.last {
		if f.revision < o.Revision {
			f.revision, changed = o.Revision, true
		}
		// The rows come by scope: that of all nodes first.
		if (o.Scope == "" || o.Scope == f.node) && (o.Until == nil || o.Until.After(now)) && f.live[o.Key] != nil {
			want[o.Key] = o.Value
		}
	}
	for key, value := range want {
		if is, ok := f.inForce[key]; ok && is.Value == value {
			continue
		}
		is := Applied{Value: value}
		if err := f.live[key](value); err != nil {
			is.Refused = err.Error()
			f.log.Warn("tune: a setting stays as it is", "setting", key, "value", value, "error", err)
		} else {
			f.log.Info("tune: a setting was changed", "setting", key, "value", value)
		}
		f.inForce[key], changed = is, true
	}
	for key, is := range f.inForce {
		if _, ok := want[key]; ok {
			continue
		}
		if is.Refused == "" {
			if err := f.live[key](""); err != nil {
				f.log.Warn("tune: a setting can't go back to its configuration", "setting", key, "error", err)
			}
			f.log.Info("tune: a setting is as configured again", "setting", key)
		}
		delete(f.inForce, key)
		changed = true
	}
	return changed
}

// Setting is a change, and what each running node made of it.
type Setting struct {
	Override
	// Nodes are by name: empty where it is in force, else why it is not.
	Nodes map[string]string `json:"nodes"`
}

// Settings are what can be seen of all changes. As JSON they are an array.
type Settings []Setting

// Show returns the changes that are in force, with what each running node made of them.
func Show(ctx context.Context, db DB) (Settings, error) {
	all, err := List(ctx, db)
	if err != nil {
		return nil, err
	}
	list, err := nodes.List(ctx, db)
	if err != nil {
		return nil, err
	}
	settings := Settings{}
	for _, o := range all {
		s := Setting{Override: o, Nodes: map[string]string{}}
		for _, n := range nodes.Named(list, o.Scope) {
			var state map[string]Applied
			_ = json.Unmarshal(n.State.Tuning, &state) // of an older program there is none
			is, ok := state[o.Key]
			switch {
			case n.AppliedRevision < o.Revision:
				s.Nodes[n.Name] = "not seen yet"
			case !ok:
				continue // it has no such setting
			case is.Value != o.Value:
				s.Nodes[n.Name] = "another value is in force: " + is.Value
			default:
				s.Nodes[n.Name] = is.Refused
			}
		}
		settings = append(settings, s)
	}
	return settings, nil
}

// Print writes the changes for people.
func (settings Settings) Print(w io.Writer) error {
	var b strings.Builder
	for _, s := range settings {
		scope := "all nodes"
		if s.Scope != "" {
			scope = "node " + s.Scope
		}
		ends := "until it is unset"
		if s.Until != nil {
			ends = "until " + s.Until.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s = %s on %s, %s, by %s: %s\n", s.Key, s.Value, scope, ends, s.By, s.Why)
		for name, why := range s.Nodes {
			if why == "" {
				why = "in force"
			}
			fmt.Fprintf(&b, "    %s: %s\n", name, why)
		}
	}
	if len(settings) == 0 {
		b.WriteString("every setting is as configured\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
