package copyin

import (
	"context"
	"hash/maphash"
	"math/bits"
	"sync"
	"time"

	"sluice.example/sluice/pipeline"
)

// recent knows which keys this process wrote lately, so that the retry of a client is looked up before COPY and does
// not make it fail. It is a hint: the unique key catches a repeat that recent forgot or that another process wrote,
// and a key that recent takes for another costs a look-up.
type recent struct {
	seed maphash.Seed

	mu      sync.Mutex
	buckets []bucket                 // by hash, a power of two of them
	batch   uint32                   // the number of the last one
	writing map[uint32]chan struct{} // by number; closed when that batch has ended
}

type slot struct {
	print uint32 // the half of the hash that is not the place
	batch uint32 // that wrote it last; 0: free
}

// bucket is a line of a processor's cache, so that it costs one read of memory. A newer key takes the place of the
// oldest in it. With one place for each hash, few other keys push a key out: nearly every batch of 2,000 events with
// 40 repeats from a second before held one that was forgotten.
type bucket [8]slot

const bucketBytes = 64

func newRecent(bytes int) *recent {
	r := &recent{seed: maphash.MakeSeed(), writing: map[uint32]chan struct{}{}}
	if n := bytes / bucketBytes; n > 0 {
		r.buckets = make([]bucket, 1<<(bits.Len(uint(n))-1))
	}
	return r
}

// enter notes the keys of a batch and marks those that were known as its suspects. It returns the batches that wrote
// them and have not ended. Call leave when this one has.
func (r *recent) enter(b *batch) (earlier []chan struct{}, leave func()) {
	if len(r.buckets) == 0 {
		return nil, func() {}
	}
	hashes := make([]uint64, len(b.order))
	for p := range hashes {
		e := b.event(int32(p))
		hashes[p] = maphash.Comparable(r.seed, recentKey{e.ID, e.OccurredAt.UnixMicro(), e.Tenant})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batch = max(1, r.batch+1)
	number, end := r.batch, make(chan struct{})
	last := number
	for p, h := range hashes {
		s, known := r.buckets[h&uint64(len(r.buckets)-1)].place(uint32(h>>32), number)
		if known && s.batch != number {
			b.suspects = append(b.suspects, int32(p))
			if writes, ok := r.writing[s.batch]; ok && s.batch != last {
				earlier, last = append(earlier, writes), s.batch
			}
		}
		*s = slot{uint32(h >> 32), number}
	}
	r.writing[number] = end
	return earlier, func() {
		r.mu.Lock()
		delete(r.writing, number)
		r.mu.Unlock()
		close(end)
	}
}

// place finds a key, or else a free place or that of the oldest.
func (b *bucket) place(print, now uint32) (s *slot, known bool) {
	oldest := 0
	for i := range b {
		if b[i].print == print && b[i].batch != 0 {
			return &b[i], true
		}
		if b[oldest].batch != 0 && (b[i].batch == 0 || now-b[i].batch > now-b[oldest].batch) {
			oldest = i
		}
	}
	return &b[oldest], false
}

type recentKey struct {
	id     pipeline.UUID
	micros int64
	tenant int32
}

// await waits until the earlier batches have ended: PostgreSQL would let this one wait for their keys, and then fail
// all of its COPY. Nobody waits in a circle: a batch that waits holds no lock yet, and waits only for earlier ones.
func await(ctx context.Context, earlier []chan struct{}, most time.Duration) {
	if len(earlier) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for _, end := range earlier {
		select {
		case <-end:
		case <-ctx.Done():
			return
		}
	}
}
