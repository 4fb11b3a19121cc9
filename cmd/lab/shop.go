package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"sluice.example/sluice/pipeline"
)

// shopDay is a day of a small shop, as NDJSON lines in the order in which its clients send them. Equal seeds and equal
// ends give equal days.
type shopDay struct {
	lines []string
	// valid counts distinct events that can be stored; repeats are sent again with the same id and time, as clients do
	// after a lost answer; bad can never be stored.
	valid, repeats, bad int
	signups, big, carts int
}

// bigPurchase is from how many cents on the sample rules tell the sales team.
const bigPurchase = 50_000

type shopVisit struct {
	random        *rand.Rand
	at            time.Time
	visitor, user string
	add           func(name string, at time.Time, v *shopVisit, properties map[string]any)
}

func makeShopDay(seed uint64, visits int, end time.Time) *shopDay {
	random := rand.New(rand.NewPCG(seed, 1))
	d := &shopDay{}
	type timed struct {
		at   time.Time
		line string
	}
	var events []timed
	add := func(name string, at time.Time, v *shopVisit, properties map[string]any) {
		e := map[string]any{
			"event_id":     pipeline.HashUUID(fmt.Sprintf("shop %d event %d", seed, len(events))).String(),
			"event_name":   name,
			"occurred_at":  at.UTC().Format("2006-01-02T15:04:05.000Z"),
			"anonymous_id": v.visitor,
			"session_id":   "s-" + v.visitor,
			"page_url":     "https://shop.example/" + strings.ReplaceAll(name, "_", "-"),
			"user_agent":   "Mozilla/5.0 (X11; Linux x86_64) demo",
			"properties":   properties,
		}
		if v.user != "" {
			e["user_id"] = v.user
		}
		events = append(events, timed{at, mustJSON(e)})
		d.valid++
	}
	for i := range visits {
		v := &shopVisit{random: random, add: add, visitor: fmt.Sprintf("v-%d-%05d", seed, i)}
		v.at = end.Add(-24*time.Hour + shopHour(random))
		v.play(d, i)
	}
	slices.SortStableFunc(events, func(a, b timed) int { return a.at.Compare(b.at) })

	for i, e := range events {
		d.lines = append(d.lines, e.line)
		switch {
		case random.Float64() < 0.01 && i > 0: // an answer was lost, the client repeats
			d.lines = append(d.lines, events[max(0, i-random.IntN(300))].line)
			d.repeats++
		case random.Float64() < 0.001:
			d.lines = append(d.lines, badShopEvents[d.bad%len(badShopEvents)])
			d.bad++
		}
	}
	return d
}

// badShopEvents are what clients get wrong, each a line that the door has to refuse without harm to its neighbours.
var badShopEvents = []string{
	`{"event_name":"","occurred_at":"2026-01-01T00:00:00Z"}`,
	`{"event_name":"page_viewed","occurred_at":"yesterday"}`,
	`{"event_name":"page_viewed","properties":{"title":"\u0000"}}`,
	`{"event_name":"page_viewed","proprties":{"title":"a typo"}}`,
	`{"event_name":"page_viewed","occurred_at":"1970-01-01T00:00:00Z"}`,
}

// shopHour draws a time of day: few at night, most in the evening.
func shopHour(r *rand.Rand) time.Duration {
	for {
		h := r.Float64() * 24
		if r.Float64() < 0.55-0.45*math.Cos((h-4)/24*2*math.Pi) {
			return time.Duration(h * float64(time.Hour))
		}
	}
}

// play is one visit: pages, perhaps a signup, a cart, a purchase.
func (v *shopVisit) play(d *shopDay, number int) {
	later := func() time.Time {
		v.at = v.at.Add(time.Duration(v.random.ExpFloat64() * float64(20*time.Second)))
		return v.at
	}
	for range 2 + v.random.IntN(8) {
		v.add("page_viewed", later(), v, map[string]any{"title": fmt.Sprintf("Product %d", v.random.IntN(200)),
			"scroll": v.random.IntN(100)})
	}
	if v.random.Float64() < 0.06 {
		v.user = fmt.Sprintf("u-%05d", number)
		v.add("signup_completed", later(), v, map[string]any{"plan": []string{"free", "pro"}[v.random.IntN(2)]})
		d.signups++
	}
	if v.random.Float64() > 0.3 {
		return
	}
	total := 0
	for range 1 + v.random.IntN(3) {
		cents := 500 + int(math.Exp(v.random.NormFloat64()*1.2+8))
		total += cents
		v.add("add_to_cart", later(), v, map[string]any{"sku": fmt.Sprintf("SKU-%04d", v.random.IntN(500)),
			"amount_cents": cents})
	}
	v.add("checkout_started", later(), v, map[string]any{"cart_id": "c-" + v.visitor})
	if v.random.Float64() < 0.5 {
		d.carts++
		return
	}
	v.add("purchase_completed", later(), v, map[string]any{"order_id": "o-" + v.visitor, "amount_cents": total,
		"currency": "EUR"})
	if total >= bigPurchase {
		d.big++
	}
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own maps of strings and numbers
	}
	return string(text)
}
