package capacity

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/pipeline/buffer"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/copyin"
	"sluice.example/sluice/pipeline/deliver"
	"sluice.example/sluice/pipeline/ingest"
)

// planDelivery finds the concurrency by Little's law, or by the sweep where that reaches the target.
func (p *planner) planDelivery(sweep *bench.Sweep) {
	latency := p.t.Receiver.Seconds()
	inFlight := p.messages() * latency
	concurrency := max(1, math.Ceil(inFlight/p.free()))
	little := fmt.Sprintf("formula: %s messages/s x %g s at the receiver = %s in flight, with %.0f %% free",
		number(p.messages()), latency, number(inFlight), 100*p.t.Headroom)
	batch := float64(deliver.DefaultConfig().ClaimBatch)
	lease := deliver.DefaultPrefetch*deliver.DefaultTimeout + deliver.LeaseMargin
	batchWhy := "the default; not measured"
	measure := fmt.Sprintf("lab bench deliver --receiver-latency %s --sweep concurrency=%.0f,%.0f,batch=500,1000",
		p.t.Receiver, concurrency, 2*concurrency)
	switch {
	case sweep == nil:
		p.ask(measure+" --out deliver.json", "delivery was not measured: whether %s messages/s are reached, and with what "+
			"CPU", number(p.messages()))
	case sweep.Base.ReceiverLatency != p.t.Receiver:
		p.ask(measure+" --out deliver.json", "delivery was measured against a receiver of %s, the target's takes %s",
			sweep.Base.ReceiverLatency, p.t.Receiver)
	default:
		p.deliver = enough(sweep, p.messages()/p.free())
		most, _ := sweep.Choose(0)
		switch {
		case p.deliver != nil:
			concurrency, batch = count(p.deliver.Settings["concurrency"]), count(p.deliver.Settings["batch"])
			little = fmt.Sprintf("measured: the least that delivered %s messages/s; the formula says %s in flight",
				number(p.deliver.Rate.Median), number(inFlight))
			batchWhy = "measured: the same point"
		case most != nil:
			p.deliver = most
			p.ask(measure, "the delivery sweep ends at %s messages/s, below the %s that the target takes with headroom",
				number(most.Rate.Median), number(p.messages()/p.free()))
		}
		if q := fastest(sweep); q != nil {
			what, allowed := "the receiver and delivery", math.Inf(1)
			if latency > 0 {
				allowed = count(q.Settings["concurrency"]) / latency
			}
			tried := q.Rate.Median > waiting*allowed
			if tried {
				what = "delivery at the most concurrency that was tried"
			}
			p.limit(what, q.Rate.Median/p.t.Matching, "measured: at most %s messages/s with concurrency %s against a "+
				"receiver of %s (which allows %s/s), divided by %g %% matching",
				number(q.Rate.Median), q.Settings["concurrency"], p.t.Receiver, number(allowed), 100*p.t.Matching)
			p.Limits[len(p.Limits)-1].Tried = tried
		}
	}
	p.set("concurrency (of the destination)", number(concurrency), "%s; of all nodes together", little)
	p.set("deliver.claim-batch", number(batch), "%s", batchWhy)
	p.set("claim.lease", fmt.Sprintf("%gs", max(claim.DefaultConfig().Lease, lease).Seconds()),
		"formula: prefetch %d x timeout %s + %s for recording = %s, at least the default, so that a pause of the database "+
			"does not cost every lease",
		deliver.DefaultPrefetch, deliver.DefaultTimeout, deliver.LeaseMargin, lease)
}

// enough is the point with the least concurrency that delivers rate.
func enough(s *bench.Sweep, rate float64) *bench.Point {
	var best *bench.Point
	for i := range s.Points {
		q := &s.Points[i]
		if q.Books.Err() != nil || q.Rate.Median < rate {
			continue
		}
		if best == nil || count(q.Settings["concurrency"]) < count(best.Settings["concurrency"]) {
			best = q
		}
	}
	return best
}

func fastest(s *bench.Sweep) (best *bench.Point) {
	for i := range s.Points {
		q := &s.Points[i]
		if q.Books.Err() == nil && (best == nil || q.Rate.Median > best.Rate.Median) {
			best = q
		}
	}
	return best
}

// waiting is the share of what concurrency / latency allows from which on senders mostly wait for the receiver, so that
// more of them would deliver more. A guess.
const waiting = 0.7

// planMachines reports whether one machine does, and otherwise how many cores on which side.
func (p *planner) planMachines() {
	program, postgres := p.point.CPU.Program, p.point.CPU.PostgreSQL
	parts := fmt.Sprintf("%s program + %s PostgreSQL us an event", number(program), number(postgres))
	if p.deliver != nil {
		program += p.t.Matching * p.deliver.CPU.Program
		postgres += p.t.Matching * p.deliver.CPU.PostgreSQL
		parts += fmt.Sprintf(", and %s + %s us a message", number(p.deliver.CPU.Program), number(p.deliver.CPU.PostgreSQL))
	}
	cores := float64(p.ingest.Machine.Cores)
	if p.deliver != nil && postgres > 0 {
		p.limit("CPU of one machine, delivery included", cores*1e6/(program+postgres),
			"formula: %g cores x 1,000,000 us / (%s, at %g %% matching); the generator is left out", cores, parts,
			100*p.t.Matching)
	}
	first := math.Inf(1)
	for _, l := range p.Limits {
		if !l.Tried {
			first = min(first, l.Rate)
		}
	}
	p.Fits = p.t.Rate <= p.free()*first
	nodeLimit := float64(p.t.NodeCores) * 1e6 / program
	p.Nodes = 1
	if !p.Fits {
		p.Nodes = max(1, int(math.Ceil(p.t.Rate/(p.free()*nodeLimit))))
		p.need("machines", fmt.Sprintf("%d for the program, 1 for PostgreSQL", p.Nodes), "one machine like the measured "+
			"one reaches %s events/s, of which %.0f %% stay free; a node of %d cores takes %s events/s by CPU (%s us an "+
			"event). One node more if one may fail",
			number(first), 100*p.t.Headroom, p.t.NodeCores, number(nodeLimit), number(program))
		if postgres > 0 {
			need := p.t.Rate * postgres / 1e6 / p.free()
			p.need("cores for PostgreSQL", number(math.Ceil(need)),
				"formula: %s events/s x %s us / 1,000,000 = %s busy, with %.0f %% free", number(p.t.Rate), number(postgres),
				number(p.t.Rate*postgres/1e6), 100*p.t.Headroom)
			if need > cores {
				p.ask(p.again("--database-url <that server>"), "whether PostgreSQL scales to %s cores: it was measured on %g",
					number(math.Ceil(need)), cores)
			}
		}
	} else {
		p.need("machines", "1, with PostgreSQL on it", "%s events/s is at most %.0f %% of the first limit, %s events/s",
			number(p.t.Rate), 100*p.free(), number(first))
	}
	p.need("headroom", fmt.Sprintf("%.0f %%", 100*(1-p.t.Rate/max(first, 1))),
		"1 - target / first limit of one machine; negative: more machines are needed, see above")

	perNode := count(p.point.Settings["writers"]) + queryConnections + 1 // for pages
	allowed, _ := strconv.ParseFloat(p.ingest.Machine.Settings["max_connections"], 64)
	reserved, _ := strconv.ParseFloat(p.ingest.Machine.Settings["superuser_reserved_connections"], 64)
	need := perNode * float64(p.Nodes)
	p.need("connections to PostgreSQL", number(need), "formula: %d nodes x (%s writers + %d others); the measured "+
		"server allows %s", p.Nodes, p.point.Settings["writers"], queryConnections+1, number(allowed-reserved))
	if most := math.Floor((allowed - reserved) / perNode); most > 0 {
		p.limit("connections", most*nodeLimit, "formula: (max_connections %s - %s reserved) / %s for each node = %s nodes "+
			"x %s events/s", number(allowed), number(reserved), number(perNode), number(most), number(nodeLimit))
	}
}

// planStorage is what piles up.
func (p *planner) planStorage() {
	const day = 86400
	stored := p.t.Rate * day * p.point.DiskBytes
	p.need("disk for events", bytes(stored)+" a day", "measured: %s bytes an event with its index, x %s events/s x "+
		"86,400 s; less where the rate is a peak", number(p.point.DiskBytes), number(p.t.Rate))
	p.need("disk for "+number(p.t.Retention)+" days of events", bytes(stored*p.t.Retention),
		"formula: the line above x days kept (retain.events)")
	p.set("retain.events", strconv.FormatFloat(p.t.Retention, 'f', -1, 64)+"d",
		"the days to keep, which the disk above is for")
	switch {
	case p.messages() > 0 && p.point.MessageBytes > 0:
		p.need("disk for messages", bytes(p.messages()*day*p.point.MessageBytes)+" a day",
			"measured: %s bytes a message with its ledger entry and indexes, before it is sent; kept for retain.outbox",
			number(p.point.MessageBytes))
	case p.messages() > 0:
		p.ask(p.again(fmt.Sprintf("--matching %g%%", 100*p.t.Matching)), "what a message takes on disk")
	}
	wal := p.t.Rate * p.point.WALBytes
	sustained := p.point.Rate.Median * p.point.WALBytes
	p.need("WAL", bytes(wal)+"/s, "+bytes(wal*day)+" a day", "measured: %s bytes an event just after a checkpoint, so "+
		"right for long intervals between them (checkpoint_timeout was %s)", number(p.point.WALBytes),
		p.ingest.Machine.Settings["checkpoint_timeout"])
	if wal > sustained {
		p.ask("pg_test_fsync on the database's disk, then "+p.again("--database-url <that server>"),
			"whether the disk takes %s/s of WAL: the measured one did %s/s", bytes(wal), bytes(sustained))
	}
	memory := float64(p.point.MemoryBytes)
	events, payloads := buffer.DefaultConfig().MaxBytes, deliver.DefaultConfig().MaxBytes
	bodies, recent := ingest.DefaultConfig().MaxReadingBytes, copyin.DefaultConfig().RecentBytes
	p.need("memory for each node", bytes(memory)+" in use, "+bytes(memory+float64(events+payloads+bodies+recent))+
		" at most", "measured under full load, and the bounds buffer.max-bytes (%d MiB) + ingest.max-reading-bytes (%d MiB) "+
		"+ copyin.recent-bytes (%d MiB) + deliver.max-bytes (%d MiB) on top; a container with less is refused", events>>20,
		bodies>>20, recent>>20, payloads>>20)
	p.ask("select pg_size_pretty(pg_relation_size(indexrelid)), indexrelid::regclass from pg_stat_user_indexes order "+
		"by pg_relation_size(indexrelid) desc limit 5",
		"how much of today's index has to fit into shared_buffers: it grows all day, and the sweep is short. Ask the "+
			"database at the end of a day")
}

func (p *planner) sort() {
	slices.SortStableFunc(p.Limits, func(a, b Limit) int {
		return int(math.Copysign(1, a.Rate-b.Rate))
	})
}

func bytes(v float64) string {
	for _, unit := range []string{"bytes", "kB", "MB", "GB"} {
		if math.Abs(v) < 1000 {
			return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + unit
		}
		v /= 1000
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + " TB"
}
